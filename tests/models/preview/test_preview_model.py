"""Whole layers and the whole model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from magi2.errors import ContractError
from magi2.models.preview.attention import attend
from magi2.models.preview.conditioning import Conditioning, ReferenceImage
from magi2.models.preview.layout import ClipLayout, latent_rows
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.ops import PreviewOps
from magi2.models.preview.state_dict import init_random_, load_preview
from tests.models.preview.preview_goldens import (
    AUDIO_LENGTH,
    CHECKPOINT,
    DTYPES,
    LATENT_SIZE,
    TIME_TOLERANCE,
    conditioning,
    load_golden,
    relative_l2,
)
from tests.models.preview.preview_goldens import tiny_config as make_tiny_config


def latents(device: torch.device) -> tuple[Tensor, Tensor]:
    stored = load_golden("model_forward", device)
    return stored["latent"], stored["audio_latent"]


def timestep(value: int, device: torch.device) -> Tensor:
    return torch.tensor(value, device=device)


@torch.no_grad()
def velocities(model: PreviewModel, inputs: Conditioning, **options: Any) -> tuple[Tensor, Tensor]:
    layout = model.prepare(LATENT_SIZE, AUDIO_LENGTH, inputs, **options)
    video, audio = model(*latents(model.device), timestep(417, model.device), layout)
    return video, audio


@pytest.mark.parametrize(("layer", "golden_name"), [(0, "layer_dense_mm"), (1, "layer_sparse")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_equals_the_published_values(
    dtype: str,
    layer: int,
    golden_name: str,
    tiny_models: dict[str, PreviewModel],
    i2v_layout: ClipLayout,
    device: torch.device,
) -> None:
    stored = load_golden(golden_name, device)
    streams = stored["x"].to(DTYPES[dtype])[i2v_layout.to_grouped].view(-1, 4, 256)
    y = tiny_models[dtype].block.layers[layer](streams, i2v_layout).flatten(1)[i2v_layout.to_packed]
    assert relative_l2(y, stored[f"{dtype}.y"]) < (5e-5 if dtype == "fp32" else 2e-2)


@pytest.mark.parametrize("value", [999, 417])
@pytest.mark.parametrize("case", ["t2v", "i2v"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_velocities_equal_the_published_ones(
    dtype: str, case: str, value: int, tiny_models: dict[str, PreviewModel], device: torch.device
) -> None:
    stored, model = load_golden("model_forward", device), tiny_models[dtype]
    layout = model.prepare(LATENT_SIZE, AUDIO_LENGTH, conditioning(case, device))
    with torch.no_grad():
        video, audio = model(*latents(device), timestep(value, device), layout)
    assert video.dtype == audio.dtype == torch.float32
    limit = 1e-5 if dtype == "fp32" else 6e-2
    assert relative_l2(video, stored[f"{case}.t{value}.{dtype}.video"]) < limit
    assert relative_l2(audio, stored[f"{case}.t{value}.{dtype}.audio"]) < limit


@pytest.mark.parametrize("dtype", DTYPES)
def test_streams_after_every_layer_equal_the_published_trace(
    dtype: str, tiny_models: dict[str, PreviewModel], device: torch.device
) -> None:
    stored, model = load_golden("model_forward", device), tiny_models[dtype]
    layout = model.prepare(LATENT_SIZE, AUDIO_LENGTH, conditioning("i2v", device))
    rows = stored[f"trace.token_rows_{dtype}"]
    video, audio = latents(device)
    with torch.no_grad():
        streams = model.embed(latent_rows(video), audio[0], timestep(417, device), layout)
        if dtype == "fp32":
            start = streams.flatten(1)[layout.to_packed][rows]
            torch.testing.assert_close(start, stored["trace.block_in_fp32"], rtol=1e-5, atol=TIME_TOLERANCE)
        for index, layer in enumerate(model.block.layers):
            streams = layer(streams, layout)
            actual = streams.flatten(1)[layout.to_packed][rows]
            limit = 1e-5 if dtype == "fp32" else 6e-2
            assert relative_l2(actual, stored[f"trace.{dtype}.layer{index}"]) < limit, index


def test_padding_changes_no_velocity(tiny_models: dict[str, PreviewModel], device: torch.device) -> None:
    inputs = conditioning("i2v", device)
    plain = velocities(tiny_models["fp32"], inputs)
    padded = velocities(tiny_models["fp32"], inputs, pad_to_multiple=48)
    for got, want in zip(padded, plain, strict=True):
        assert relative_l2(got, want) < 1e-5


def test_unguided_run_equals_the_conditional_branch(tiny_models: dict[str, PreviewModel], device: torch.device) -> None:
    inputs = conditioning("i2v", device)
    guided = velocities(tiny_models["fp32"], inputs)
    alone = velocities(tiny_models["fp32"], inputs, guided=False)
    for got, want in zip(alone, guided, strict=True):
        assert got.shape[0] == 1 and relative_l2(got, want[:1]) < 1e-5


def test_hiding_the_image_changes_the_unconditional_branch_only(
    tiny_models: dict[str, PreviewModel], device: torch.device
) -> None:
    inputs = conditioning("i2v", device)
    shown = velocities(tiny_models["fp32"], inputs)
    hidden = velocities(tiny_models["fp32"], inputs, use_ref_for_uncond=False)
    for got, want in zip(hidden, shown, strict=True):
        assert relative_l2(got[0], want[0]) < 1e-5 < 1e-3 < relative_l2(got[1], want[1])


def test_images_of_different_sizes_work_together(tiny_models: dict[str, PreviewModel], device: torch.device) -> None:
    generator = torch.Generator().manual_seed(5)
    sizes = [(2, 4), (3, 1)]
    images = tuple(
        ReferenceImage(
            torch.randn(1, 16, 1, *size, generator=generator).to(device),
            torch.randn(40, generator=generator).to(device),
        )
        for size in sizes
    )
    text = conditioning("t2v", device)
    model = tiny_models["fp32"]
    layout = model.prepare(LATENT_SIZE, AUDIO_LENGTH, replace(text, references=images))
    added = sum(1 + height * width for height, width in sizes)
    assert layout.sequences.bounds == (0, 99 + added, 202 + 2 * added)
    both = velocities(model, replace(text, references=images))
    first = velocities(model, replace(text, references=images[:1]))
    hidden = velocities(model, replace(text, references=images), use_ref_for_uncond=False)
    for got, other, unseen in zip(both, first, hidden, strict=True):
        assert torch.isfinite(got).all()
        assert relative_l2(got, other) > 1e-3
        assert relative_l2(unseen[0], got[0]) < 1e-5 and torch.isfinite(unseen).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_step_never_waits_for_the_device(
    dtype: str,
    tiny_models: dict[str, PreviewModel],
    device: torch.device,
    no_host_sync: Callable[[], AbstractContextManager[None]],
) -> None:
    if dtype == "fp32" and device.type == "cuda":
        pytest.skip("grouped products in fp32 have no kernel there, and their substitute waits")
    model = tiny_models[dtype]
    layout = model.prepare(LATENT_SIZE, AUDIO_LENGTH, conditioning("i2v", device))
    inputs = (*latents(device), timestep(417, device), layout)
    with torch.no_grad(), no_host_sync():
        model(*inputs)


def test_gradient_reaches_every_parameter(device: torch.device) -> None:
    model = load_preview(CHECKPOINT, make_tiny_config(), device=device, compute_dtype=torch.float32).requires_grad_()
    layout = model.prepare(LATENT_SIZE, AUDIO_LENGTH, conditioning("i2v", device))
    video, audio = model(*latents(device), timestep(417, device), layout)
    (video.square().mean() + audio.square().mean()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all() and parameter.grad.abs().sum() > 0, name


def test_replaced_ops_are_used_by_every_layer(device: torch.device) -> None:
    model = load_preview(CHECKPOINT, make_tiny_config(), device=device)
    calls: list[int] = []

    def counted(*arguments: Any) -> Tensor:
        calls.append(1)
        return attend(*arguments)

    model.use_ops(PreviewOps(attend=counted))
    replaced = velocities(model, conditioning("t2v", device))
    assert len(calls) == 4
    model.use_ops(PreviewOps())
    assert torch.equal(replaced[0], velocities(model, conditioning("t2v", device))[0]) and len(calls) == 4


def test_latents_of_another_size_are_refused(tiny_models: dict[str, PreviewModel], device: torch.device) -> None:
    model = tiny_models["fp32"]
    layout = model.prepare(LATENT_SIZE, AUDIO_LENGTH, conditioning("t2v", device))
    video, audio = latents(device)
    with pytest.raises(ContractError, match="video latents have shape"):
        model(video[..., :-1], audio, timestep(1, device), layout)
    with pytest.raises(ContractError, match="audio latents have shape"):
        model(video, audio[:, :-1], timestep(1, device), layout)


def test_random_weights_denoise_to_finite_lively_latents() -> None:
    model = PreviewModel(make_tiny_config())
    init_random_(model, torch.Generator().manual_seed(3))
    layout = model.prepare(LATENT_SIZE, AUDIO_LENGTH, conditioning("i2v"))
    generator = torch.Generator().manual_seed(7)
    video, audio = torch.randn(1, 16, 3, 4, 6, generator=generator), torch.randn(1, 20, 24, generator=generator)
    with torch.no_grad():
        for step in range(8):
            time = 1 - step / 8
            for_video, for_audio = model(video, audio, torch.tensor(int(999 * time)), layout)
            assert 0.3 < float(for_video.std()) < 3 and 0.3 < float(for_audio.std()) < 3
            guided = for_video[1] + 5 * (for_video[0] - for_video[1]), for_audio[1] + 7 * (for_audio[0] - for_audio[1])
            video, audio = video - guided[0] / 8, audio - guided[1] / 8
    for result in (video, audio):
        assert torch.isfinite(result).all() and 0.3 < float(result.std()) < 30


def test_random_weights_repeat_with_the_seed() -> None:
    first, second = PreviewModel(make_tiny_config()), PreviewModel(make_tiny_config())
    for model in (first, second):
        init_random_(model, torch.Generator().manual_seed(3))
    bands = first.pre_adapter.rope.bands
    assert torch.equal(bands, 10000.0 ** (-torch.arange(8) / 8))
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
