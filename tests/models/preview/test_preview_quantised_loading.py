"""Loading FP8 weights: from published bf16 files, and from files that hold e4m3 with scales."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from magi2.errors import CheckpointError
from magi2.models.checkpoint import SafetensorsFolder
from magi2.models.preview.config import Weights
from magi2.models.preview.expert_rows import RankSource
from magi2.models.preview.expert_share import expert_share
from magi2.models.preview.quantised import E4M3, E4M3_MAX, quantise
from magi2.models.preview.quantised_source import QuantisedSource
from magi2.models.preview.state_dict import load_preview
from magi2.parallel.mesh import Mesh
from tests.models.preview.preview_goldens import CHECKPOINT, tiny_config

GATE = "block.layers.1.mlp.moe_mlp.W_gate"
QKV = "block.layers.1.attention.linear_qkv.weight"
FORMATS: tuple[Weights, ...] = ("fp8_experts", "fp8")


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    return {name: value for file in sorted(CHECKPOINT.glob("*.safetensors")) for name, value in load_file(file).items()}


def save(tensors: dict[str, Tensor], folder: Path, metadata: dict[str, str] | None = None) -> Path:
    save_file(tensors, folder / "model.safetensors", metadata)
    return folder


def as_public(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Routed experts as a third party publishes them: values on the published axes, a scale an output channel."""
    found = dict(tensors)
    for name, value in tensors.items():
        if ".moe_mlp.W_" in name:
            scales = value.float().abs().amax(1) / E4M3_MAX
            found[name] = (value.float() / scales.unsqueeze(1)).to(E4M3)
            found[f"{name}_scale"] = scales
    return found


def bits(state: dict[str, Any]) -> dict[str, Tensor]:
    return {name: value.view(torch.uint8) if value.dtype == E4M3 else value for name, value in state.items()}


@pytest.mark.parametrize("weights", FORMATS)
def test_large_weights_are_quantised_and_all_others_stay(weights: Weights, tensors: dict[str, Tensor]) -> None:
    state = load_preview(CHECKPOINT, tiny_config(), weights=weights).state_dict()
    quantised = {name for name, value in state.items() if value.dtype == E4M3}
    assert GATE in quantised and (QKV in quantised) == (weights == "fp8")
    assert state.keys() == tensors.keys() | {f"{name}_scale" for name in quantised}
    for name, stored in tensors.items():
        if name not in quantised:
            assert torch.equal(state[name].float(), stored.float()), name
    kept = ("linear_g", "norm", "router", "moe_mlp.gate", "mhc", "sinks", "adapter")
    assert not any(part in name for name in quantised for part in kept)
    values, scales = quantise(tensors[GATE].transpose(1, 2))
    assert torch.equal(state[GATE].float(), values.float()) and torch.equal(state[f"{GATE}_scale"], scales)


def test_published_fp8_experts_load_by_their_names(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    public = as_public(tensors)
    for weights in FORMATS:
        state = load_preview(save(public, tmp_path), tiny_config(), weights=weights).state_dict()
        assert torch.equal(state[GATE].float(), public[GATE].transpose(1, 2).float())
        assert torch.equal(state[f"{GATE}_scale"], public[f"{GATE}_scale"])
        assert state[QKV].dtype == (E4M3 if weights == "fp8" else torch.bfloat16)


def test_scales_with_an_axis_of_one_are_taken_as_well(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    public = as_public(tensors)
    public[f"{GATE}_scale"] = public[f"{GATE}_scale"].unsqueeze(1)
    assert load_preview(save(public, tmp_path), tiny_config(), weights="fp8_experts").block is not None


def test_a_format_that_lost_more_than_wanted_is_refused_with_what_to_set(
    tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    folder = save(as_public(tensors), tmp_path)
    with pytest.raises(CheckpointError, match=r"stored as fp8_experts, compute\.weights is bf16: set compute\.weights"):
        load_preview(folder, tiny_config())
    linear = dict(tensors)
    linear[QKV], linear[f"{QKV}_scale"] = quantise(linear[QKV])
    with pytest.raises(CheckpointError, match=r"stored as fp8, compute\.weights is fp8_experts"):
        load_preview(save(linear, tmp_path), tiny_config(), weights="fp8_experts")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t[GATE].view(-1)[5].fill_(float("nan")), f"{GATE}: holds a value that is NaN or infinite"),
        (lambda t: t.update({GATE: t[GATE].to(E4M3)}), r"W_gate: is torch\.float8_e4m3fn, and .*W_gate_scale is not"),
        (lambda t: t.update({f"{GATE}_scale": torch.ones(3)}), "W_gate_scale is there"),
        (lambda t: t.pop(GATE), "missing, first"),
    ],
)
def test_what_is_wrong_is_named(change: Any, message: str, tensors: dict[str, Tensor], tmp_path: Path) -> None:
    change(tensors)
    with pytest.raises(CheckpointError, match=message):
        load_preview(save(tensors, tmp_path), tiny_config(), weights="fp8")


def test_scales_of_another_number_are_refused(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    public = as_public(tensors)
    public[f"{GATE}_scale"] = torch.ones(3)
    with pytest.raises(CheckpointError, match=r"W_gate: has scales \[3\] for channels"):
        load_preview(save(public, tmp_path), tiny_config(), weights="fp8_experts")


def test_scales_that_lie_otherwise_are_refused_by_name(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    folder = save(as_public(tensors), tmp_path, {"magi2_scales": "128x128"})
    with pytest.raises(CheckpointError, match=re.escape("its scales lie by '128x128', known is 'channel' alone")):
        load_preview(folder, tiny_config(), weights="fp8_experts")


def test_ranks_together_have_the_experts_of_one(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    names = (GATE, f"{GATE}_scale")
    whole = bits(load_preview(CHECKPOINT, tiny_config(), weights="fp8").state_dict())
    for folder in (CHECKPOINT, save(as_public(tensors), tmp_path)):
        parts: dict[str, list[Tensor]] = {name: [] for name in names}
        for rank in range(4):
            share = expert_share(2, 8, rank=rank, size=4)
            own = RankSource(SafetensorsFolder(folder), share, 2, Mesh.single(torch.device("cpu")))
            source = QuantisedSource(own, {GATE}, "cpu")
            for name in names:
                parts[name].append(source.read(name))
                assert tuple(parts[name][-1].shape) == source.shape(name)
        if folder == CHECKPOINT:
            found = bits({name: torch.cat(pieces) for name, pieces in parts.items()})
            assert all(torch.equal(found[name], whole[name]) for name in names)
        else:
            assert torch.equal(torch.cat(parts[f"{GATE}_scale"]), as_public(tensors)[f"{GATE}_scale"])
