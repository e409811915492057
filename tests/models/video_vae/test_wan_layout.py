"""Packing, shortcuts, doubling and statistics: the parameter-free parts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from magi2.models.video_vae.layout import (
    FrameConv,
    average_down,
    double_space,
    interleave_halves,
    pack,
    repeat_up,
    unpack,
)
from magi2.models.video_vae.statistics import LATENT_MEAN, LATENT_STD, denormalise, normalise


def test_statistics_are_the_published_ones(expected: dict[str, Tensor]) -> None:
    assert torch.equal(torch.tensor(LATENT_MEAN), expected["mean"])
    assert torch.equal(torch.tensor(LATENT_STD), expected["std"])


def test_denormalise_inverts_normalise() -> None:
    latents = torch.randn(1, 48, 2, 3, 3)
    torch.testing.assert_close(denormalise(normalise(latents)), latents)
    assert normalise(latents.bfloat16()).dtype == torch.float32


def test_packing_puts_columns_before_rows(expected: dict[str, Tensor]) -> None:
    packed = pack(expected["patchify.in"])
    assert torch.equal(packed, expected["patchify.out"])
    assert torch.equal(unpack(packed), expected["patchify.in"])


@pytest.mark.parametrize(("source", "result"), [("in", "t2s2_c8"), ("in4", "t2s2_c8_in4")])
def test_down_shortcut_averages_like_the_release(expected: dict[str, Tensor], source: str, result: str) -> None:
    averaged = average_down(expected[f"avgdown.{source}"], 8, 2, 2)
    torch.testing.assert_close(averaged, expected[f"avgdown.{result}"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("result", "time_factor", "first_chunk"), [("t1s2_c4", 1, False), ("t2s2_c4", 2, False), ("t2s2_c4_first", 2, True)]
)
def test_up_shortcut_repeats_like_the_release(
    expected: dict[str, Tensor], result: str, time_factor: int, first_chunk: bool
) -> None:
    repeated = repeat_up(expected["dupup.in"], 4, time_factor, 2, first_chunk=first_chunk)
    assert torch.equal(repeated, expected[f"dupup.{result}"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_doubling_equals_nearest_exact_interpolation(device: torch.device, dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 2, 5, 7, device=device).to(dtype)
    wanted = F.interpolate(x.float(), scale_factor=(1, 2, 2), mode="nearest-exact").to(dtype)
    assert torch.equal(double_space(x), wanted)


def test_channel_halves_become_neighbouring_frames() -> None:
    even, odd = torch.randn(1, 3, 4, 2, 2), torch.randn(1, 3, 4, 2, 2)
    frames = interleave_halves(torch.cat([even, odd], dim=1))
    assert torch.equal(frames[:, :, 0::2], even)
    assert torch.equal(frames[:, :, 1::2], odd)


@pytest.mark.parametrize(("stride", "padding"), [(1, 1), (2, 0)])
def test_frame_convolution_equals_a_flat_one_per_frame(device: torch.device, stride: int, padding: int) -> None:
    conv = FrameConv(4, stride=stride, padding=padding).to(device)
    flat = nn.Conv2d(4, 4, 3, stride=stride, padding=padding).to(device)
    flat.load_state_dict(conv.state_dict())
    x = torch.randn(2, 4, 3, 9, 7, device=device)
    wanted = torch.stack([flat(frame) for frame in x.unbind(2)], dim=2)
    torch.testing.assert_close(conv(x), wanted, rtol=1e-4, atol=1e-5)
