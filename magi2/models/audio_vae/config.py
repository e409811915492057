"""Architecture of the Oobleck audio autoencoder, as `model_config.json` of Stable Audio Open describes it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magi2.errors import CheckpointError

CONFIG_NAME = "model_config.json"


@dataclass(frozen=True)
class OobleckConfig:
    """One half of the autoencoder: `io_channels` is the encoder's input or the decoder's output, 2 for stereo."""

    io_channels: int
    channels: int
    c_mults: tuple[int, ...]
    strides: tuple[int, ...]
    latent_dim: int
    use_snake: bool = True
    use_nearest_upsample: bool = False
    final_tanh: bool = False

    def __post_init__(self) -> None:
        if len(self.c_mults) != len(self.strides) or not self.strides:
            raise CheckpointError(f"oobleck: {len(self.c_mults)} c_mults for {len(self.strides)} strides, want as many")
        numbers = (self.io_channels, self.channels, self.latent_dim, *self.c_mults, *self.strides)
        if any(number < 1 for number in numbers):
            raise CheckpointError(f"oobleck: channels, multipliers and strides must be at least 1, got {numbers}")

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels from the waveform's end to the latent's end: one more than there are blocks."""
        return tuple(multiplier * self.channels for multiplier in (1, *self.c_mults))


@dataclass(frozen=True)
class AudioVaeConfig:
    """Both halves; the encoder's latent holds mean and scale, so it is twice as wide as the decoder's."""

    encoder: OobleckConfig
    decoder: OobleckConfig
    soft_clip: bool = False

    @property
    def downsampling_ratio(self) -> int:
        """Samples per latent row: 2048 as published, 51,200 samples per second at 25 rows per second."""
        return math.prod(self.decoder.strides)


def read_audio_config(folder: Path) -> AudioVaeConfig:
    """The autoencoder that `folder/model_config.json` describes.

    Raises: CheckpointError naming the file when it is missing, is not JSON or describes something else.
    """
    path = folder / CONFIG_NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable as JSON: {error}") from error
    try:
        return config_from_json(content)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def config_from_json(content: Mapping[str, Any]) -> AudioVaeConfig:
    """The autoencoder inside a parsed `model_config.json`; raises CheckpointError for an absent or unknown part."""
    try:
        pretransform = content["model"]["pretransform"]["config"]
        bottleneck = pretransform["bottleneck"]["type"]
        config = AudioVaeConfig(
            encoder=_half(pretransform["encoder"], io_key="in_channels"),
            decoder=_half(pretransform["decoder"], io_key="out_channels"),
            soft_clip=bool(pretransform["decoder"].get("soft_clip", False)),
        )
        ratio = int(pretransform["downsampling_ratio"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CheckpointError(f"no audio autoencoder described: {type(error).__name__} {error}") from error
    if bottleneck != "vae":
        raise CheckpointError(f"bottleneck {bottleneck!r}, only 'vae' is known")
    if ratio != config.downsampling_ratio:
        raise CheckpointError(f"downsampling_ratio {ratio}, the strides multiply to {config.downsampling_ratio}")
    return config


def _half(described: Mapping[str, Any], *, io_key: str) -> OobleckConfig:
    if described["type"] != "oobleck":
        raise CheckpointError(f"autoencoder of type {described['type']!r}, only 'oobleck' is known")
    values = dict(described["config"])
    values["io_channels"] = values.pop(io_key)
    for key in ("c_mults", "strides"):
        values[key] = tuple(values[key])
    return OobleckConfig(**values)
