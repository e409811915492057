"""8-bit conversion against golden vectors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from magi2.errors import ContractError
from magi2.media.frames import to_uint8


def test_truncation_matches_golden_exactly(golden: Path, device: torch.device) -> None:
    tensors = load_file(golden / "output/postprocess.safetensors")
    assert torch.equal(to_uint8(tensors["decoded"].to(device), "truncate").cpu(), tensors["uint8"])


def test_rounding_is_within_one_level_of_golden_and_brighter(golden: Path) -> None:
    tensors = load_file(golden / "output/postprocess.safetensors")
    difference = to_uint8(tensors["decoded"]).int() - tensors["uint8"].int()
    assert set(difference.unique().tolist()) == {0, 1}


def test_values_out_of_range_are_clamped_and_nan_is_black() -> None:
    pixels = torch.tensor([-5.0, 5.0, float("nan"), float("inf"), float("-inf"), 0.0]).expand(1, 3, 1, 1, 6)
    assert to_uint8(pixels)[0, 0, :, 0].tolist() == [0, 255, 0, 255, 0, 128]


@pytest.mark.parametrize(
    "pixels", [torch.zeros(3, 1, 4, 4), torch.zeros(2, 3, 1, 4, 4), torch.zeros(1, 3, 1, 4, 4).int()]
)
def test_pixels_of_another_shape_are_refused(pixels: torch.Tensor) -> None:
    with pytest.raises(ContractError, match="decoded pixels"):
        to_uint8(pixels)
