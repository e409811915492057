"""Published names and shapes, and loading of the tiny checkpoint."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from magi2.errors import CheckpointError
from magi2.models.preview.config import PreviewConfig
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.state_dict import load_preview
from tests.models.preview.preview_goldens import CHECKPOINT, golden_json, tiny_config

BIAS = "block.layers.1.mlp.moe_mlp.router.expert_bias"


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    return {name: value for file in sorted(CHECKPOINT.glob("*.safetensors")) for name, value in load_file(file).items()}


def save(tensors: dict[str, Tensor], folder: Path) -> Path:
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_names_shapes_and_dtypes_are_the_published_ones() -> None:
    facts = golden_json("published_shapes")
    with torch.device("meta"):
        model = PreviewModel(PreviewConfig())
    state = model.state_dict()
    values = dict.fromkeys(facts["num_values_by_dtype"], 0)
    seen = set()
    for name, tensor in state.items():
        layer = re.match(r"block\.layers\.(\d+)\.", name)
        published = name
        if layer:
            like = 0 if int(layer[1]) in (0, 1, 38, 39) else 2
            published = f"block.layers.{like}.{name[layer.end() :]}"
        assert [list(tensor.shape), str(tensor.dtype).removeprefix("torch.")] == facts["shapes"][published], name
        values[str(tensor.dtype)] += tensor.numel()
        seen.add(published)
    assert seen == set(facts["shapes"])
    assert len(state) == facts["num_tensors"]
    assert values == facts["num_values_by_dtype"]


@pytest.mark.parametrize("compute_dtype", [torch.bfloat16, torch.float32])
def test_tiny_checkpoint_loads_bit_for_bit(compute_dtype: torch.dtype, tensors: dict[str, Tensor]) -> None:
    state = load_preview(CHECKPOINT, tiny_config(), compute_dtype=compute_dtype).state_dict()
    assert state.keys() == tensors.keys()
    for name, stored in tensors.items():
        assert state[name].dtype == (compute_dtype if stored.dtype == torch.bfloat16 else torch.float32), name
        assert torch.equal(state[name].float(), stored.float()), name


def test_small_tensors_stored_in_bf16_are_widened(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    halved = {name: value.bfloat16() for name, value in tensors.items()}
    model = load_preview(save(halved, tmp_path), tiny_config())
    assert model.block.layers[0].mhc_norm.weight.dtype == torch.float32


@pytest.mark.parametrize(("source", "stored"), [("ema", f"{BIAS}_ema"), ("main", BIAS)])
def test_router_bias_comes_from_the_chosen_tensor(source: str, stored: str, tensors: dict[str, Tensor]) -> None:
    model = load_preview(CHECKPOINT, tiny_config(), router_bias=source)
    assert not torch.equal(tensors[BIAS], tensors[f"{BIAS}_ema"])
    assert torch.equal(model.block.layers[1].mlp.moe_mlp.router(), tensors[stored])


@pytest.mark.parametrize("name", [BIAS, f"{BIAS}_ema", "pre_adapter.rope.bands", "block.layers.3.attention.sinks"])
def test_missing_tensor_is_refused(name: str, tensors: dict[str, Tensor], tmp_path: Path) -> None:
    del tensors[name]
    with pytest.raises(CheckpointError, match=re.escape(name)):
        load_preview(save(tensors, tmp_path), tiny_config())


@pytest.mark.parametrize("name", ["block.layers.4.mhc_norm.weight", "pre_adapter.extra", "post_adapter.extra"])
def test_unexpected_tensor_of_the_model_is_refused(name: str, tensors: dict[str, Tensor], tmp_path: Path) -> None:
    tensors[name] = torch.zeros(1)
    with pytest.raises(CheckpointError, match=re.escape(name)):
        load_preview(save(tensors, tmp_path), tiny_config())


def test_tensor_outside_the_model_is_skipped_and_reported(
    tensors: dict[str, Tensor], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors["optimizer.step"] = torch.zeros(1)
    with caplog.at_level(logging.INFO):
        load_preview(save(tensors, tmp_path), tiny_config())
    assert "optimizer.step" in caplog.text


def test_weights_of_another_architecture_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"final_linear_audio.*\(24, 1024\), the model wants \(23, 1024\)"):
        load_preview(CHECKPOINT, replace(tiny_config(), audio_in_channels=23))


def test_loaded_bands_are_used_instead_of_the_formula(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    tensors["pre_adapter.rope.bands"] = torch.full((8,), 0.5)
    model = load_preview(save(tensors, tmp_path), tiny_config())
    assert torch.equal(model.pre_adapter.rope.bands, torch.full((8,), 0.5))
