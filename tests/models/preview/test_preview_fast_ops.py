"""The published values once more, with kernels in place of plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from magi2.models.preview.fast_ops import use_fast_ops
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.state_dict import load_preview
from tests.models.preview.preview_goldens import (
    AUDIO_LENGTH,
    CHECKPOINT,
    DTYPES,
    LATENT_SIZE,
    conditioning,
    load_golden,
    relative_l2,
    tiny_config,
)


@pytest.fixture(scope="module")
def fast_models(device: torch.device) -> dict[str, PreviewModel]:
    names = DTYPES if device.type != "cpu" else {"fp32": torch.float32}
    models = {n: load_preview(CHECKPOINT, tiny_config(), device=device, compute_dtype=DTYPES[n]) for n in names}
    for model in models.values():
        use_fast_ops(model)
    return models


def stored_latents(device: torch.device) -> tuple[Tensor, Tensor]:
    stored = load_golden("model_forward", device)
    return stored["latent"], stored["audio_latent"]


@pytest.mark.parametrize("case", ["t2v", "i2v"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_velocities_equal_the_published_ones(
    dtype: str, case: str, fast_models: dict[str, PreviewModel], device: torch.device
) -> None:
    if device.type == "cpu":
        pytest.skip("takes minutes in the interpreter, which runs a layer below")
    stored, model = load_golden("model_forward", device), fast_models[dtype]
    layout = model.prepare(LATENT_SIZE, AUDIO_LENGTH, conditioning(case, device))
    with torch.no_grad():
        video, audio = model(*stored_latents(device), torch.tensor(417, device=device), layout)
    limit = 1e-5 if dtype == "fp32" else 6e-2
    assert relative_l2(video, stored[f"{case}.t417.{dtype}.video"]) < limit
    assert relative_l2(audio, stored[f"{case}.t417.{dtype}.audio"]) < limit


@pytest.mark.parametrize(("layer", "golden_name"), [(0, "layer_dense_mm"), (1, "layer_sparse")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_equals_the_published_values(
    dtype: str, layer: int, golden_name: str, fast_models: dict[str, PreviewModel], device: torch.device
) -> None:
    if device.type == "cpu" and (dtype, layer) != ("fp32", 1):
        pytest.skip("the interpreter runs the sparse layer in fp32")
    stored, model = load_golden(golden_name, device), fast_models[dtype]
    layout = model.prepare(LATENT_SIZE, AUDIO_LENGTH, conditioning("i2v", device))
    streams = stored["x"].to(DTYPES[dtype])[layout.to_grouped].view(-1, 4, 256)
    with torch.no_grad():
        y = model.block.layers[layer](streams, layout).flatten(1)[layout.to_packed]
    assert relative_l2(y, stored[f"{dtype}.y"]) < (5e-5 if dtype == "fp32" else 2e-2)


def test_weights_keep_names_shapes_and_values(fast_models: dict[str, PreviewModel], device: torch.device) -> None:
    plain = load_preview(CHECKPOINT, tiny_config(), device=device, compute_dtype=torch.float32).state_dict()
    state = fast_models["fp32"].state_dict()
    assert state.keys() == plain.keys()
    for name, value in plain.items():
        assert torch.equal(state[name], value), name
