"""The audio autoencoder in closed form: weights that are written down, not trained, in the published layout.

All sounds are sums of known waveforms of 2048 samples, so the network can be exactly linear. Going down the strides,
each level cuts its waveforms into `stride` pieces and keeps an orthonormal basis of them (SVD); the coefficients become
the transposed convolution, and the basis is what the next level has to make. Residual units pass their input through,
snake activations add nothing. The encoder is as narrow as can be and gives nothing: rendering never encodes sound.
"""

# Shapes: K waveforms (channels of a level), R basis vectors (channels of the next), S stride, W samples of a window

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from demo_world.audio_latents import LATENT_GAIN, codes
from demo_world.sound import wave_table
from magi2.errors import CheckpointError
from magi2.models.audio_vae.config import CONFIG_NAME, AudioVaeConfig, config_from_json
from magi2.models.audio_vae.state_dict import DECODER_PREFIX, expected_tensors

WEIGHTS_NAME = "model.safetensors"
SNAKE_OFF = 18.0
"""The logarithm that a snake divides its square by: what it adds is below 2e-8."""
LOSS_LIMIT = 1e-5
"""Share of the waveforms that a level's channels may be unable to hold."""

_BOTH: Mapping[str, Any] = {"channels": 1, "strides": [2, 4, 4, 8, 8], "use_snake": True}
_ENCODER: Mapping[str, Any] = {"in_channels": 2, "latent_dim": 128, "c_mults": [1, 1, 1, 1, 1], **_BOTH}
_DECODER: Mapping[str, Any] = {
    **{"out_channels": 2, "latent_dim": 64, "final_tanh": False},
    **{"c_mults": [2, 8, 14, 39, 40], **_BOTH},
}
"""From the samples' end: one, two and eight samples are free, and so many waveforms make all longer ones."""
MODEL_CONFIG: Mapping[str, Any] = {
    "model_type": "autoencoder",
    "sample_rate": 44100,
    "audio_channels": 2,
    "model": {
        "pretransform": {
            "type": "autoencoder",
            "config": {
                "encoder": {"type": "oobleck", "config": _ENCODER},
                "decoder": {"type": "oobleck", "config": _DECODER},
                "bottleneck": {"type": "vae"},
                "latent_dim": 64,
                "downsampling_ratio": 2048,
                "io_channels": 2,
            },
        }
    },
}


def write_audio_autoencoder(folder: Path) -> None:
    """Write `model_config.json` and `model.safetensors` (0.3 MB) into `folder`, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_NAME).write_text(json.dumps(MODEL_CONFIG, indent=1) + "\n", encoding="utf-8")
    save_file(audio_tensors(config_from_json(MODEL_CONFIG)), folder / WEIGHTS_NAME)


def audio_tensors(config: AudioVaeConfig) -> dict[str, Tensor]:
    """Every tensor of the autoencoder under its published name: fp32 where a value matters, bf16 where none does.

    Raises: CheckpointError when a level has too few channels for the demo's waveforms.
    """
    tensors = {name: _idle(name, shape) for name, shape in expected_tensors(config).items()}
    levels, sample = _levels(wave_table(), config)
    _put(tensors, "layers.0", codes()[:, :, None] / LATENT_GAIN, tap=3)
    for number, level in enumerate(levels, start=1):
        _put(tensors, f"layers.{number}.layers.1", level, tap=math.ceil(level.shape[2] / 2))
    both_channels = torch.full((2, 1, 1), sample, dtype=torch.float64)
    _put(tensors, f"layers.{len(levels) + 2}", both_channels, tap=3)
    return tensors


def _idle(name: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor that does nothing: convolutions of gain 0 in some direction, snakes that are switched off."""
    if name.endswith("weight_v"):
        return torch.ones(shape, dtype=torch.bfloat16)
    return torch.full(shape, SNAKE_OFF if name.endswith("beta") else 0.0, dtype=torch.bfloat16)


def _levels(waves_KW: Tensor, config: AudioVaeConfig) -> tuple[list[Tensor], float]:
    """Coefficients [K, R, S] of each level, the latents' end first, and the value of the last one-sample waveform."""
    levels, basis = [], waves_KW
    for stride, width in zip(reversed(config.decoder.strides), reversed(config.decoder.widths[:-1]), strict=True):
        pieces = basis.reshape(len(basis) * stride, -1)
        _, strength, directions = torch.linalg.svd(pieces, full_matrices=False)
        rank = min(width, len(directions))
        lost = (strength[rank:].norm() / strength.norm()).item()
        if lost > LOSS_LIMIT:
            raise CheckpointError(
                f"audio autoencoder: {width} channels lose {lost:.1e} of the waveforms, {LOSS_LIMIT} may"
            )
        levels.append((pieces @ directions[:rank].T).view(len(basis), stride, rank).transpose(1, 2))
        basis = directions[:rank]
    return levels, basis.item()


def _put(tensors: dict[str, Tensor], name: str, values: Tensor, *, tap: int) -> None:
    """Let the decoder's convolution `name` hold `values` [K, R, S] in its first channels from `tap` on, else zero."""
    gain, direction = f"{DECODER_PREFIX}{name}.weight_g", f"{DECODER_PREFIX}{name}.weight_v"
    first, second, taps = values.shape
    weight = torch.zeros(tensors[direction].shape)
    weight[:first, :second, tap : tap + taps] = values
    tensors[gain] = torch.linalg.vector_norm(weight, dim=(1, 2), keepdim=True)
    tensors[direction] = torch.where(tensors[gain] > 0, weight, 1.0)
