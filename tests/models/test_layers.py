"""Layers shared by the preview transformer and the refiner."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from magi2.errors import ContractError
from magi2.models.layers import apply_rope, rms_norm, rope_table, swiglu7, swiglu7_pair

ROPE_CASES = [
    "t2v_272p",
    "t2v_540p",
    "i2v_272p",
    "i2v_540p",
    "i2v_two_images",
    "edge_text1_audio1",
    "edge_audio9_text0",
    "inter_mode",
    "pad13",
]


def stored(golden: Path, name: str, device: torch.device) -> dict[str, torch.Tensor]:
    return load_file(golden / "preview" / f"{name}.safetensors", device=str(device))


def test_swiglu7_equals_the_published_values(golden: Path, device: torch.device) -> None:
    values = stored(golden, "swiglu7", device)
    torch.testing.assert_close(swiglu7(values["x_fp32"]), values["y_fp32"], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(swiglu7(values["x_bf16"]), values["y_bf16"], rtol=2**-7, atol=1e-6)
    widened = values["x_bf16"].float()
    torch.testing.assert_close(swiglu7(widened), values["y_bf16_in_fp32_out"], rtol=1e-6, atol=1e-6)


def test_swiglu7_pair_keeps_the_dtype_of_the_gate(device: torch.device) -> None:
    gate, up = torch.randn(2, 5, 8, device=device).unbind()
    fused = torch.stack([gate, up], dim=-1).flatten(-2)
    assert torch.equal(swiglu7_pair(gate, up), swiglu7(fused))
    assert swiglu7_pair(gate.bfloat16(), up).dtype == torch.bfloat16


def test_rms_norm_equals_the_published_values(golden: Path, device: torch.device) -> None:
    values = stored(golden, "rmsnorm", device)
    weight = values["single.weight"]
    torch.testing.assert_close(rms_norm(values["x"], weight), values["single.y_fp32"], rtol=2e-6, atol=2e-6)
    rounded = rms_norm(values["x"].bfloat16(), weight)
    torch.testing.assert_close(rounded, values["single.y_bf16"], rtol=2**-7, atol=1e-6)
    assert rms_norm(values["x"].bfloat16(), weight, out_dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize("case", ROPE_CASES)
def test_rope_table_equals_the_published_values(case: str, golden: Path, device: torch.device) -> None:
    values = stored(golden, "rope_coords", device)
    table = rope_table(values[f"{case}.coords"], values["bands_head_dim128"])
    torch.testing.assert_close(table, values[f"{case}.rope"], rtol=0, atol=2e-6)


def test_rope_turns_the_first_channels_in_split_halves(golden: Path, device: torch.device) -> None:
    values = stored(golden, "rope_coords", device)
    table = values["i2v_272p.rope"][values["apply.token_rows"]]
    torch.testing.assert_close(apply_rope(values["apply.q"], table), values["apply.y"], rtol=0, atol=1e-6)


def test_size_one_against_a_larger_reference_is_refused(device: torch.device) -> None:
    coords = torch.tensor([[0, 0, 0, 1, 1, 1, 2, 1, 1]], dtype=torch.float32, device=device)
    with pytest.raises(ContractError, match="size 1"):
        rope_table(coords, torch.ones(2, device=device))
