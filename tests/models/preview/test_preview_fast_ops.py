"""The published values once more, with kernels in place of plain torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from magi2.config.load import load_profile
from magi2.models.preview.conditioning import Conditioning
from magi2.models.preview.config import PreviewConfig
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


@pytest.mark.slow
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


CONFIGS = Path(__file__).parents[3] / "configs"
SHIPPED = load_profile("demo", CONFIGS).architectures.preview
SPARSE = replace(SHIPPED.moe_config, moe_layers=(0,))
DEMO = replace(SHIPPED, num_layers=1, mm_layers=(0,), text_in_channels=16, moe_config=SPARSE)
ODD = {
    "demo": (DEMO, {"attend", "route", "run_experts"}),
    "width": (
        replace(DEMO, moe_config=replace(SPARSE, split_merge_intermediate_size=32, expert_intermediate_size=20)),
        {"attend", "run_experts"},
    ),
    "streams": (
        replace(
            DEMO,
            head_dim=96,
            num_query_groups=2,
            moe_config=replace(SPARSE, split_merge_intermediate_size=32, expert_intermediate_size=16),
            mhc_config=replace(DEMO.mhc_config, num_stream=2),
        ),
        {"attend", "mhc_coefficients", "mhc_input", "mhc_post", "packed_heads"},
    ),
}


def random_model(config: PreviewConfig, device: torch.device) -> PreviewModel:
    model, generator = PreviewModel(config, compute_dtype=torch.float32), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.1
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return model.to(device)


@pytest.mark.parametrize("case", ODD)
def test_shapes_that_kernels_refuse_go_the_plain_way_with_one_line(
    case: str, device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    config, plain = ODD[case]
    model = random_model(config, device)
    text = random_rows(device, 2, config.text_in_channels)[None]
    layout = model.prepare((1, 1, 2), 1, Conditioning(text, text[:, :1]), guided=False)
    video, audio = random_rows(device, 48, 2).view(1, 48, 1, 1, 2), random_rows(device, 1, 64)[None]
    time = torch.tensor(417, device=device)
    with torch.no_grad():
        wanted = model(video, audio, time, layout)
        use_fast_ops(model)
        found = model(video, audio, time, layout)
    for one, other in zip(found, wanted, strict=True):
        assert relative_l2(one, other) < 1e-5
    (record,) = [record for record in caplog.records if "in place of kernels" in record.message]
    steps = record.message.partition("slower: ")[2].split("; ")
    assert {step.partition(" (")[0] for step in steps} == plain


def random_rows(device: torch.device, rows: int, width: int) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(rows)).to(device)
