"""The shipped decoder and image encoder do what they were trained for, on scenes that training never saw."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from PIL import Image

from demo_world.judge.form import measure_shape
from demo_world.judge.looking import look
from demo_world.picture import draw_frames
from demo_world.scenes import Scene, draw_scene
from demo_world.takes import Take, draw_take
from demo_world.training.encoder import CONFIG, FILE
from demo_world.video_latents import draw_from_latents, image_latents, video_latents
from magi2.media.frames import to_uint8
from magi2.media.image import load_image, prepare_reference
from magi2.models.turbo_vae.loading import load_turbo_decoder
from magi2.models.video_vae.loading import load_wan_encoder

CHECKPOINT = Path(__file__).parents[2] / "examples" / "demo_checkpoint"
SMALL_TRIANGLE = Take(Scene("triangle", "yellow", "black", "small", "fast", "down", "low"))


@pytest.mark.parametrize(("height", "fps"), [(4, 12.5), (8, 25.0)])
def test_decoded_clips_are_close_to_the_exact_picture(height: int, fps: float) -> None:
    assert SMALL_TRIANGLE.scene.is_held_out
    latents = video_latents(SMALL_TRIANGLE, height=height, width=2 * height, count=7, fps=fps)
    truth = draw_frames(SMALL_TRIANGLE, height=16 * height, width=32 * height, fps=fps, frame_count=25)
    decoder = load_turbo_decoder(CHECKPOINT / "turbo_vae", device="cpu", dtype=torch.float32)
    with torch.inference_mode():
        decoded = torch.cat(list(decoder.decode(latents)), dim=2).clamp(-1, 1)
    error = (decoded - truth).square().mean()
    assert 10 * torch.log10(4 / error) > 34  # dB
    seen = look(decoded[0].permute(1, 2, 3, 0), fps=fps)
    assert (seen.background, seen.colour, measure_shape(seen)) == ("black", "yellow", "triangle")


def test_encoded_images_show_the_same_shapes_in_the_same_colours(tmp_path: Path) -> None:
    rng, path = random.Random(61), tmp_path / "image.png"
    encoder = load_wan_encoder(CHECKPOINT / FILE, CONFIG, device="cpu")
    right_shapes = 0
    for _ in range(18):
        scene = draw_scene(rng, held_out=True)
        take, frame = draw_take(scene, rng), rng.randrange(100)
        drawn = draw_frames(take, height=128, width=256, fps=12.5, frame_count=1, first=frame)
        Image.fromarray(to_uint8(drawn)[0].numpy()).save(path)
        with torch.inference_mode():
            latents = encoder.encode(prepare_reference(load_image(path), height=64, width=128))
        truth = image_latents(take, height=4, width=8, seconds=frame / 12.5)
        assert (latents - truth).norm() < 0.08 * truth.norm()
        seen = look(draw_from_latents(latents, height=128)[0].permute(1, 2, 3, 0), fps=12.5)
        assert (seen.background, seen.colour) == (scene.background, scene.colour)
        right_shapes += measure_shape(seen) == scene.shape
    assert right_shapes >= 17  # one small square in twenty has corners so round that it passes for a circle
