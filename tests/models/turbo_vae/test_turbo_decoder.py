"""The turbo decoder against three golden toy decoders, and what it promises about windows, memory and gradients."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from magi2.errors import ContractError
from magi2.models.turbo_vae import frames as frames_module
from magi2.models.turbo_vae.config import PUBLISHED_TURBO_DECODER, TINY_TURBO_DECODER
from magi2.models.turbo_vae.decoder import TurboDecoder
from magi2.models.turbo_vae.layers import Conv, normalise_channels
from magi2.models.turbo_vae.loading import load_turbo_decoder
from magi2.models.turbo_vae.windows import Window
from magi2.models.video_vae.initialise import init_random_
from tests.peak_bytes import PeakBytes

CASES = ("A", "B", "C")
LENGTHS = [("A", 5), ("A", 7), ("A", 8), ("A", 16), ("A", 32), ("B", 2), ("B", 3), ("B", 7), ("B", 8), ("C", 13)]


@pytest.fixture
def load(
    turbo_checkpoint: Callable[[str], dict[str, Any]],
    save_turbo: Callable[[str, dict[str, Any]], Path],
    device: torch.device,
) -> Callable[[str, torch.dtype], TurboDecoder]:
    return lambda case, dtype: load_turbo_decoder(save_turbo(case, turbo_checkpoint(case)), device=device, dtype=dtype)


@pytest.fixture
def toy() -> TurboDecoder:
    decoder = TurboDecoder(TINY_TURBO_DECODER, compute_dtype=torch.float32)
    init_random_(decoder, torch.Generator().manual_seed(5))
    return decoder.requires_grad_(False)


def relative_error(result: Tensor, wanted: Tensor) -> float:
    assert result.shape == wanted.shape
    return float((result.cpu().double() - wanted.double()).norm() / wanted.double().norm())


def expected(golden: Path, case: str) -> dict[str, Tensor]:
    return load_file(golden / f"turbo_vae/{case}_decode.safetensors")


@pytest.mark.parametrize(("case", "latents"), LENGTHS)
def test_decoding_equals_golden(golden: Path, load: Callable[..., TurboDecoder], case: str, latents: int) -> None:
    decoder, wanted = load(case, torch.float32), expected(golden, case)
    frames = torch.cat(list(decoder.decode(wanted["z"][:, :, :latents])), dim=2)
    assert frames.shape[2] == 4 * latents - 3
    assert relative_error(frames, wanted[f"out_{latents}"]) < 1e-5


def test_bf16_decoding_equals_golden(golden: Path, load: Callable[..., TurboDecoder]) -> None:
    decoder, wanted = load("A", torch.bfloat16), expected(golden, "A")
    frames = torch.cat(list(decoder.decode(wanted["z"][:, :, :16])), dim=2)
    assert frames.dtype == torch.bfloat16
    assert relative_error(frames, wanted["bf16_out_16"]) < 2e-2


@pytest.mark.parametrize("case", CASES)
def test_stages_and_raw_windows_equal_golden(golden: Path, load: Callable[..., TurboDecoder], case: str) -> None:
    decoder, wanted = load(case, torch.float32), expected(golden, case)
    network = decoder.decoder
    watched: dict[str, nn.Module] = {"conv_in": network.conv_in, "mid": network.mid_block}
    watched |= {f"up{i}": stage for i, stage in enumerate(network.up_blocks)}
    latents = decoder.denormalise(wanted["z"])
    assert relative_error(latents, wanted["z_denormalised"]) < 1e-6
    seen: dict[str, Tensor] = {}
    for name, module in watched.items():
        module.register_forward_hook(lambda _module, _inputs, output, name=name: seen.__setitem__(name, output))
    assert relative_error(network(latents[:, :, :3], True), wanted["window3_first"]) < 1e-5
    assert {f"stage.{name}" for name in seen} == {name for name in wanted if name.startswith("stage.")}
    for name, output in seen.items():
        assert relative_error(output, wanted[f"stage.{name}"]) < 1e-5, name
    assert relative_error(network(latents[:, :, :3], False), wanted["window3_notfirst"]) < 1e-5


def test_latents_are_rounded_before_and_after_denormalising() -> None:
    decoder = TurboDecoder(TINY_TURBO_DECODER)
    latents = torch.randn(1, 48, 2, 2, 2)
    rounded = decoder.denormalise(latents)
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded, decoder.denormalise(latents.bfloat16()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norm_is_computed_in_fp32_and_rounded_once(device: torch.device, dtype: torch.dtype) -> None:
    x = torch.randn(1, 5, 9, 3, 3, device=device).to(dtype)
    wide = x.float()
    wanted = (wide / (wide.square().mean(1, keepdim=True) + 1e-8).sqrt()).to(dtype)
    normed = normalise_channels(x)
    assert normed.dtype == dtype
    torch.testing.assert_close(normed, wanted)


def test_windows_decode_alone_and_in_any_order_to_the_bits_of_the_stream(toy: TurboDecoder) -> None:
    latents = torch.randn(1, 48, 16, 1, 2)
    streamed = list(toy.decode(latents))
    plan = toy.plan(16)
    assert len(plan) == len(streamed) == 3
    for window, frames in reversed(list(zip(plan, streamed, strict=True))):
        assert frames.shape == (1, 3, window.frame_count, 16, 32)
        assert torch.equal(toy.decode_window(latents, window), frames)


def test_windows_are_decoded_only_when_asked_for(toy: TurboDecoder) -> None:
    decoded: list[bool] = []
    toy.decoder.register_forward_hook(lambda _module, inputs, _output: decoded.append(inputs[1]))
    stream = toy.decode(torch.randn(1, 48, 21, 1, 1))
    assert decoded == []
    frames = weakref.ref(next(stream))
    assert decoded == [True]
    assert frames() is None
    next(stream)
    assert decoded == [True, False]


def test_memory_does_not_grow_with_the_clip(toy: TurboDecoder) -> None:
    peaks = []
    for latents in (28, 63):
        clip = torch.randn(1, 48, latents, 1, 1)
        with PeakBytes() as meter:
            for _ in toy.decode(clip):
                pass
        peaks.append(meter.peak - clip.nbytes)  # every window is a view of the clip
    assert peaks[0] == peaks[1] > 0


@pytest.mark.parametrize("window", [0, 3, 8])
def test_a_window_of_the_largest_clip_needs_less_than_14_gib(window: int) -> None:
    with torch.device("meta"):
        decoder = TurboDecoder(PUBLISHED_TURBO_DECODER).requires_grad_(False)
        clip = torch.empty(1, 48, 63, 68, 120)
    with PeakBytes() as meter:
        frames = decoder.decode_window(clip, decoder.plan(63)[window])
    assert frames.shape[3:] == (1088, 1920)
    # Two activations of 128 channels at 36 x 544 x 960 are 9.0 GiB, the one that the last stage began with 2.2 GiB.
    assert meter.peak < 14 * 2**30


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("elements", [1, 20_000])
def test_few_frames_at_a_time_decode_to_the_same_picture(
    golden: Path, load: Callable[..., TurboDecoder], case: str, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames_module, "BLOCK_ELEMENTS", elements)
    decoder, wanted = load(case, torch.float32), expected(golden, case)
    for window, name in ((True, "window3_first"), (False, "window3_notfirst")):
        latents = decoder.denormalise(wanted["z"])[:, :, :3]
        with torch.no_grad():
            assert relative_error(decoder.decoder(latents, window), wanted[name]) < 1e-5


def test_a_separable_stage_that_changes_width_has_a_separable_shortcut() -> None:
    """Its shortcut has the published names, and computes what the one convolution that it multiplies out to does."""
    plain = replace(TINY_TURBO_DECODER, decoder_block_out_channels=(12, 16, 16, 16))
    separable = replace(plain, decoder_is_dw_conv=(True, False, False, False, False))
    block = TurboDecoder(separable, compute_dtype=torch.float32).decoder.up_blocks[-1].conv_in
    wanted = Conv(16, 12, (1, 1, 1))
    with torch.no_grad():
        shortcut = dict(block.conv_shortcut.named_parameters())
        wanted.conv.weight.copy_(
            shortcut["pointwise_conv.weight"] * shortcut["depthwise_conv.weight"].view(1, 16, 1, 1, 1)
        )
        wanted.conv.bias.copy_(
            shortcut["pointwise_conv.bias"]
            + (shortcut["pointwise_conv.weight"] * shortcut["depthwise_conv.bias"].view(1, 16, 1, 1, 1))
            .sum(1)
            .flatten()
        )
        frames = torch.randn(1, 16, 3, 4, 5)
        torch.testing.assert_close(block.conv_shortcut(frames), wanted(frames))
    shapes = {name: tuple(parameter.shape) for name, parameter in shortcut.items()}
    assert shapes == {
        "depthwise_conv.weight": (16, 1, 1, 1, 1),
        "depthwise_conv.bias": (16,),
        "pointwise_conv.weight": (12, 16, 1, 1, 1),
        "pointwise_conv.bias": (12,),
    }


def test_a_decoder_with_separable_shortcuts_decodes() -> None:
    config = replace(
        TINY_TURBO_DECODER,
        decoder_block_out_channels=(8, 12, 12, 16),
        decoder_is_dw_conv=(True, True, True, True, True),
    )
    decoder = TurboDecoder(config, compute_dtype=torch.float32).requires_grad_(False)
    init_random_(decoder, torch.Generator().manual_seed(5))
    frames = torch.cat(list(decoder.decode(torch.randn(1, 48, 9, 1, 2))), dim=2)
    assert frames.shape == (1, 3, 33, 16, 32) and bool(frames.isfinite().all())


@pytest.mark.parametrize(("total", "reach", "elements"), [(1, 1, 1), (2, 2, 1), (5, 2, 2), (7, 1, 3), (7, 0, 2)])
def test_every_block_of_frames_comes_with_its_neighbours(
    total: int, reach: int, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames_module, "BLOCK_ELEMENTS", elements)
    x = torch.arange(1.0, total + 1).view(1, 1, total, 1, 1)
    prepared: list[float] = []

    def prepare(frames: Tensor) -> Tensor:
        prepared.extend(frames.flatten().tolist())
        return -frames

    for start, stop, frames in frames_module.with_neighbours(x, reach, prepare):
        wanted = [-float(min(max(i, 0), total - 1) + 1) for i in range(start - reach, stop + reach)]
        assert frames.flatten().tolist() == wanted
    assert prepared == x.flatten().tolist()


def test_published_size_has_the_published_parameters(golden: Path) -> None:
    listed = json.loads((golden / "turbo_vae/full_parameter_list.json").read_text())
    with torch.device("meta"):
        decoder = TurboDecoder(PUBLISHED_TURBO_DECODER)
    found = {name: list(tensor.shape) for name, tensor in decoder.state_dict().items()}
    assert found == {name: entry["shape"] for name, entry in listed["tensors"].items()}
    assert sum(parameter.numel() for parameter in decoder.parameters()) == listed["num_elements"]


@pytest.mark.parametrize("case", CASES)
def test_gradients_reach_every_parameter(load: Callable[..., TurboDecoder], case: str) -> None:
    decoder = load(case, torch.float32).requires_grad_(True)
    torch.cat(list(decoder.decode(torch.randn(1, 48, 9, 1, 2))), dim=2).square().mean().backward()
    without = [name for name, p in decoder.named_parameters() if p.grad is None or not bool(p.grad.any())]
    assert without == []


@pytest.mark.parametrize("seed", range(3))
def test_random_weights_give_frames_neither_flat_nor_saturated(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    decoder = TurboDecoder(TINY_TURBO_DECODER)
    init_random_(decoder, generator)
    with torch.no_grad():
        frames = torch.cat(list(decoder.decode(torch.randn(1, 48, 9, 2, 4, generator=generator))), dim=2).float()
    assert bool(frames.isfinite().all())
    assert 0.2 < float(frames.std()) < 1
    assert float(frames.std(dim=2).mean()) > 0.1
    assert float((frames.abs() > 1).float().mean()) < 0.4


def test_other_layouts_and_foreign_windows_are_refused(toy: TurboDecoder) -> None:
    with pytest.raises(ContractError, match=r"\[B,48,T,h,w\], got \(1, 16, 7, 1, 1\)"):
        toy.decode(torch.zeros(1, 16, 7, 1, 1))
    with pytest.raises(ContractError, match="not in the plan of a clip of 7 latents"):
        toy.decode_window(torch.zeros(1, 48, 7, 1, 1), Window(6, 15, False, 4, 25, 53))
