"""Wan encoder and decoder against the golden toy network, and what they promise about memory and gradients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from magi2.errors import ConfigError, ContractError, InputError
from magi2.models.video_vae.config import WanVaeConfig
from magi2.models.video_vae.decoder import WanDecoder
from magi2.models.video_vae.encoder import WanEncoder
from magi2.models.video_vae.initialise import init_random_
from magi2.models.video_vae.layers import ChunkCache
from magi2.models.video_vae.loading import load_wan_decoder, load_wan_encoder

TOLERANCE = 1e-5

TINY = WanVaeConfig(encoder_channels=4, decoder_channels=4)
"""All 196 tensors of the published network at toy widths."""


@pytest.fixture(scope="module")
def encoder(wan_file: Path, wan_config: WanVaeConfig, device: torch.device) -> WanEncoder:
    return load_wan_encoder(wan_file, wan_config, device=device)


@pytest.fixture(scope="module")
def decoder(wan_file: Path, wan_config: WanVaeConfig, device: torch.device) -> WanDecoder:
    return load_wan_decoder(wan_file, wan_config, device=device)


def relative_error(result: Tensor, wanted: Tensor) -> float:
    assert result.shape == wanted.shape
    return float((result.cpu().double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.parametrize("frames", [1, 5, 9, 17])
def test_encoding_equals_golden(encoder: WanEncoder, expected: dict[str, Tensor], frames: int) -> None:
    latents = encoder.encode(expected["video"][:, :, :frames])
    assert relative_error(latents, expected[f"latent_{frames}"]) < TOLERANCE


def test_whole_groups_encode_like_the_longer_clip_whose_tail_is_lost(
    encoder: WanEncoder, expected: dict[str, Tensor]
) -> None:
    assert relative_error(encoder.encode(expected["video"][:, :, :5]), expected["latent_7"]) < TOLERANCE


def test_stages_of_an_image_equal_golden(encoder: WanEncoder, expected: dict[str, Tensor]) -> None:
    network = encoder.encoder
    watched: dict[str, nn.Module] = {"conv1": network.conv1}
    watched |= {f"down{i}": level for i, level in enumerate(network.downsamples)}
    watched |= {f"middle{i}": layer for i, layer in enumerate(network.middle)}
    seen: dict[str, Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda _module, _inputs, output, name=name: seen.__setitem__(name, output))
        for name, module in watched.items()
    ]
    encoder.encode(expected["video"][:, :, :1])
    for hook in hooks:
        hook.remove()
    assert len(seen) == 8
    for name, output in seen.items():
        assert relative_error(output, expected[f"enc1.{name}"]) < TOLERANCE, name


@pytest.mark.parametrize("latents", [1, 4])
def test_decoding_equals_golden(decoder: WanDecoder, expected: dict[str, Tensor], latents: int) -> None:
    groups = list(decoder.decode(expected["z"][:, :, :latents]))
    assert [group.shape[2] for group in groups] == [1, 4, 4, 4][:latents]
    assert relative_error(torch.cat(groups, dim=2), expected[f"decoded_{latents}"]) < TOLERANCE


@pytest.mark.parametrize("frames", [2, 7, 8])
def test_frames_that_would_be_lost_are_refused(encoder: WanEncoder, frames: int) -> None:
    with pytest.raises(InputError, match=rf"cannot encode {frames} frames.*use {1 if frames < 5 else 5} frames"):
        encoder.encode(torch.zeros(1, 3, frames, 32, 32))


def test_sides_that_do_not_fill_latent_cells_are_refused(encoder: WanEncoder) -> None:
    with pytest.raises(InputError, match="24x32 pixels: both sides must be multiples of 16"):
        encoder.encode(torch.zeros(1, 3, 1, 32, 24))


def test_other_layouts_are_refused(encoder: WanEncoder, decoder: WanDecoder) -> None:
    with pytest.raises(ContractError, match=r"\[B,3,F,H,W\]"):
        encoder.encode(torch.zeros(1, 32, 32, 3))
    with pytest.raises(ContractError, match=r"\[B,48,T,h,w\]"):
        decoder.decode(torch.zeros(1, 16, 1, 2, 2))


def test_published_size_has_the_published_parameters(golden: Path) -> None:
    listed = json.loads((golden / "video_vae/full_parameter_list.json").read_text())["tensors"]
    with torch.device("meta"):
        halves = (WanEncoder(WanVaeConfig()), WanDecoder(WanVaeConfig()))
    found = {name: list(tensor.shape) for half in halves for name, tensor in half.state_dict().items()}
    assert found == {name: entry["shape"] for name, entry in listed.items()}
    assert len(found) == 196


def test_decoding_is_lazy_and_the_cache_does_not_grow(decoder: WanDecoder) -> None:
    chunks: list[int] = []
    cached: list[int] = []

    def watch(_module: nn.Module, inputs: tuple[Tensor, ChunkCache], _output: Tensor) -> None:
        chunks.append(inputs[0].shape[2])
        storages = [past.untyped_storage().nbytes() for past in inputs[1]._past.values()]
        cached.append(sum(storages))

    hook = decoder.decoder.register_forward_hook(watch)
    stream = decoder.decode(torch.randn(1, 48, 6, 1, 1))
    assert chunks == []
    for count, _ in enumerate(stream, start=1):
        assert chunks == [1] * count
    hook.remove()
    assert cached[1:] == [cached[1]] * 5


@pytest.mark.parametrize("half", ["encoder", "decoder"])
def test_gradients_reach_every_parameter(half: str, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(1)
    if half == "encoder":
        model: nn.Module = WanEncoder(TINY).to(device)
        init_random_(model, generator)
        result = model.encode(torch.randn(1, 3, 5, 32, 32, generator=generator))
    else:
        model = WanDecoder(TINY).to(device)
        init_random_(model, generator)
        result = torch.cat(list(model.decode(torch.randn(1, 48, 2, 2, 2, generator=generator))), dim=2)
    result.square().mean().backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not bool(p.grad.any())]
    assert without == []


def test_random_weights_give_lively_results_and_depend_on_the_seed_alone() -> None:
    def build(seed: int) -> tuple[WanEncoder, WanDecoder]:
        encoder, decoder = WanEncoder(TINY), WanDecoder(TINY)
        generator = torch.Generator().manual_seed(seed)
        init_random_(encoder, generator)
        init_random_(decoder, generator)
        return encoder, decoder

    encoder, decoder = build(3)
    with torch.no_grad():
        latents = encoder.encode(torch.rand(1, 3, 1, 64, 128) * 2 - 1)
        frames = torch.cat(list(decoder.decode(torch.randn(1, 48, 2, 4, 8))), dim=2)
    assert latents.shape == (1, 48, 1, 4, 8)
    assert bool(latents.isfinite().all()) and 0.2 < float(latents.std()) < 3
    assert 0.2 < float(frames.std()) < 1 and float((frames.abs() > 1).float().mean()) < 0.4
    assert torch.equal(build(3)[1].conv2.weight, decoder.conv2.weight)
    assert not torch.equal(build(4)[1].conv2.weight, decoder.conv2.weight)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"latent_channels": 16}, "latent_channels is 16"),
        ({"temporal_downsample": (True,)}, "1 flags, 4 levels need 3"),
        ({"encoder_channels": 0}, "at least 1"),
        ({"channel_multipliers": (1, 7, 4, 4), "decoder_channels": 5}, "cannot spread"),
    ],
)
def test_impossible_configurations_are_refused(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        WanVaeConfig(**change)  # type: ignore[arg-type]
