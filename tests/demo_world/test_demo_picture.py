"""Exact pictures, and the video latents that describe them."""

from __future__ import annotations

import random

import pytest
import torch

from demo_world.picture import colour_levels, draw_frames
from demo_world.scenes import MOTIONS, SHAPES, Motion, Scene, Shape, draw_scene
from demo_world.takes import AREA, Take, draw_take, track
from demo_world.video_latents import CHANNELS, draw_from_latents, video_latents
from magi2.errors import ContractError


def take_of(shape: Shape = "square", motion: Motion = "right") -> Take:
    return Take(Scene(shape, "red", "blue", "large", "fast", motion, "low"))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_has_its_area_and_colours(shape: Shape) -> None:
    take = take_of(shape, "still")
    pixels = draw_frames(take, height=256, width=512, fps=25.0, frame_count=1)[0, :, 0]
    assert torch.equal(pixels[:, 0, 0], colour_levels("blue"))
    assert torch.equal(pixels[:, 128, 256], colour_levels("red"))
    covered = ((pixels[0] - pixels[0, 0, 0]) / (pixels[0, 128, 256] - pixels[0, 0, 0])).sum() / 256**2
    assert covered == pytest.approx(AREA[shape] * take.radius**2, rel=0.02)


@pytest.mark.parametrize("motion", MOTIONS)
def test_a_shape_stays_inside_the_picture(motion: Motion) -> None:
    take = take_of("square", motion)
    at = track(take, torch.arange(249) / 25)
    assert at.x.min() > take.radius and at.x.max() < 2 - take.radius
    assert at.y.min() > take.radius and at.y.max() < 1 - take.radius


def test_rates_and_sizes_show_the_same_moments() -> None:
    take = take_of("circle", "bounce")
    coarse = draw_frames(take, height=64, width=128, fps=12.5, frame_count=125)
    fine = draw_frames(take, height=128, width=256, fps=25.0, frame_count=249)[:, :, ::2]
    averaged = torch.nn.functional.avg_pool2d(fine[0].transpose(0, 1), 2).transpose(0, 1)[None]
    assert (averaged - coarse).abs().mean() < 0.01


@pytest.mark.parametrize(("height", "count", "fps"), [(4, 32, 12.5), (8, 63, 25.0)])
def test_latents_of_either_size_describe_the_exact_picture(height: int, count: int, fps: float) -> None:
    rng = random.Random(21)
    for _ in range(2):
        take = draw_take(draw_scene(rng), rng)
        latents = video_latents(take, height=height, width=2 * height, count=count, fps=fps)
        assert latents.shape == (1, CHANNELS, count, height, 2 * height) and latents.dtype == torch.float32
        truth = draw_frames(take, height=16 * height, width=32 * height, fps=fps, frame_count=4 * count - 3)
        error = (draw_from_latents(latents, height=16 * height) - truth).square().mean()
        assert 10 * torch.log10(4 / error) > 28  # dB: corners are rounded by the interpolation, nothing else is


def test_latents_of_drawn_takes_have_mean_zero_and_variance_one() -> None:
    rng = random.Random(22)
    takes = [draw_take(draw_scene(rng), rng) for _ in range(150)]
    values = torch.cat([video_latents(take, height=4, width=8, count=8, fps=3.125) for take in takes])
    for channels in (slice(0, 36), slice(36, 39), slice(39, 42)):
        assert abs(values[:, channels].mean()) < 0.2
        assert 0.8 < values[:, channels].std() < 1.2


def test_a_picture_of_another_ratio_is_refused() -> None:
    with pytest.raises(ContractError, match="256x144"):
        draw_frames(take_of(), height=144, width=256, fps=25.0, frame_count=1)
    with pytest.raises(ContractError, match="8x5"):
        video_latents(take_of(), height=5, width=8, count=1, fps=25.0)
