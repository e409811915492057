"""Random weights that sound: for tiny checkpoints, tests and training from scratch."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from magi2.models.audio_vae.config import AudioVaeConfig
from magi2.models.audio_vae.model import AudioDecoder, ResidualUnit, Snake
from magi2.models.audio_vae.state_dict import DECODER_PREFIX, PREFIX, expected_tensors

PEAK = 0.5
"""Largest sample of the probe that sets the level: well above silence, 6 dB below full scale."""
PROBE_ROWS = 100
"""Latent rows of that probe, 4 seconds."""
RESIDUAL_GAIN = 0.3
"""Each residual unit adds this share of its input's level, so fifteen of them do not run away."""


@torch.no_grad()
def init_random_(decoder: AudioDecoder, generator: torch.Generator) -> AudioDecoder:
    """Fill `decoder` (on the generator's device) in place: audible and unclipped for N(0, 1) latents; returns it.

    The last convolution has zero-mean taps (no constant offset reaches the output) and is scaled so that a probe
    of random latents peaks at half of full scale.
    """
    units = [module for module in decoder.modules() if isinstance(module, ResidualUnit)]
    quiet = {id(unit.layers[-1]) for unit in units}
    for module in decoder.modules():
        if isinstance(module, nn.Conv1d | nn.ConvTranspose1d):
            _fill_convolution(module, generator, gain=RESIDUAL_GAIN if id(module) in quiet else 1.0)
        elif isinstance(module, Snake):
            module.alpha.normal_(0.0, 0.2, generator=generator)
            module.beta.normal_(0.0, 0.2, generator=generator)
    body, last = decoder.decoder.layers[:-2], decoder.decoder.layers[-2]
    weight = last.get_parameter("weight")
    weight.sub_(weight.mean(dim=-1, keepdim=True))
    shape = (1, decoder.config.decoder.latent_dim, PROBE_ROWS)
    probe = torch.randn(shape, generator=generator, device=generator.device)
    weight.mul_(PEAK / last(body(probe)).abs().max())
    return decoder


def tiny_audio_tensors(config: AudioVaeConfig, generator: torch.Generator) -> dict[str, Tensor]:
    """Every tensor of a random autoencoder under its published name: a `model.safetensors` ready to be saved.

    Convolutions come as `weight_g` and `weight_v`; the encoder, which nothing runs, is filled with small noise.
    """
    decoder = init_random_(AudioDecoder(config), generator)
    tensors: dict[str, Tensor] = {}
    for name, tensor in decoder.state_dict().items():
        if name.endswith(".weight"):
            tensors[f"{PREFIX}{name}_g"] = torch.linalg.vector_norm(tensor, dim=(1, 2), keepdim=True)
            tensors[f"{PREFIX}{name}_v"] = tensor
        else:
            tensors[PREFIX + name] = tensor
    for name, shape in expected_tensors(config).items():
        if not name.startswith(DECODER_PREFIX):
            tensors[name] = 0.1 * torch.randn(shape, generator=generator)
    return tensors


def _fill_convolution(layer: nn.Conv1d | nn.ConvTranspose1d, generator: torch.Generator, *, gain: float) -> None:
    """Normal weights that scale the deviation by `gain`: an output sums in_channels x (taps that reach it) values."""
    taps = layer.kernel_size[0] // (layer.stride[0] if isinstance(layer, nn.ConvTranspose1d) else 1)
    layer.weight.normal_(0.0, gain / math.sqrt(layer.in_channels * taps), generator=generator)
    if layer.bias is not None:
        layer.bias.zero_()
