"""Reading the decoder out of Stable Audio Open's weights, and the full list of what the autoencoder stores there."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor, nn

from magi2.errors import CheckpointError
from magi2.models.audio_vae.config import AudioVaeConfig, OobleckConfig, read_audio_config
from magi2.models.audio_vae.model import AudioDecoder, OobleckDecoder, ResidualUnit, activation
from magi2.models.checkpoint import SafetensorsFolder, TensorSource, load_module

logger = logging.getLogger(__name__)

PREFIX = "pretransform.model."
DECODER_PREFIX = PREFIX + "decoder."


def fold_weight_norm(gain: Tensor, direction: Tensor) -> Tensor:
    """The effective weight `g v / ||v||`, the norm over all axes but the first.

    For a convolution the first axis is the output channel, for a transposed one it is the INPUT channel.
    """
    norm: Tensor = torch.linalg.vector_norm(direction, dim=(1, 2), keepdim=True)
    return gain * direction / norm


class FoldedWeightNorm:
    """A `TensorSource` in which each pair `X.weight_g`, `X.weight_v` under `prefix` reads as one `X.weight`.

    Everything else passes unchanged, also a half of a pair, which the strict loader then refuses by name.
    """

    def __init__(self, source: TensorSource, *, prefix: str) -> None:
        self._source = source
        stored = set(source.names())
        pairs = {name.removesuffix("_v") for name in stored if name.startswith(prefix) and name.endswith(".weight_v")}
        self._folded = {name for name in pairs if f"{name}_g" in stored}

    @property
    def location(self) -> str:
        return self._source.location

    def names(self) -> list[str]:
        halves = {f"{name}_g" for name in self._folded}
        names = (name for name in self._source.names() if name not in halves)
        return [name.removesuffix("_v") if name.removesuffix("_v") in self._folded else name for name in names]

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._folded:
            return self._source.shape(name)
        direction, gain = self._source.shape(f"{name}_v"), self._source.shape(f"{name}_g")
        if len(direction) != 3 or gain != (direction[0], 1, 1):
            raise CheckpointError(
                f"{self.file_of(name)}: {name}_g has shape {gain}, {name}_v {direction}: "
                "want one gain per index of the first of three axes"
            )
        return direction

    def read(self, name: str) -> Tensor:
        if name not in self._folded:
            return self._source.read(name)
        self.shape(name)  # refuses halves that do not belong together
        return fold_weight_norm(self._source.read(f"{name}_g"), self._source.read(f"{name}_v"))

    def file_of(self, name: str) -> str:
        return self._source.file_of(f"{name}_v" if name in self._folded else name)


def load_audio_decoder(folder: Path, *, device: torch.device | str = "cpu") -> AudioDecoder:
    """The decoder of a folder in the published layout (`model_config.json`, `model.safetensors`), fp32 on `device`.

    Only tensors below `pretransform.model.decoder.` are read; the rest of the file is counted in the log.
    Raises: CheckpointError naming file and tensor when something is missing, unexpected or mis-shaped.
    """
    with torch.device("meta"):
        decoder = AudioDecoder(read_audio_config(folder))
    source = FoldedWeightNorm(SafetensorsFolder(folder), prefix=DECODER_PREFIX)
    report = load_module(decoder, source, device=device, rename=_decoder_name)
    skipped = Counter(name.removeprefix(PREFIX).split(".", 1)[0] for name in report.skipped)
    logger.info("loaded %d audio decoder tensors from %s, skipped %s", report.loaded, folder, dict(skipped))
    return decoder


def _decoder_name(stored: str) -> str | None:
    return stored.removeprefix(PREFIX) if stored.startswith(DECODER_PREFIX) else None


def expected_tensors(config: AudioVaeConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor the autoencoder stores under `pretransform.model.`, encoder included."""
    with torch.device("meta"):
        halves = {"encoder": _encoder_layers(config.encoder), "decoder": OobleckDecoder(config.decoder)}
    shapes: dict[str, tuple[int, ...]] = {}
    for half, module in halves.items():
        for name, tensor in module.state_dict().items():
            stored, shape = f"{PREFIX}{half}.{name}", tuple(tensor.shape)
            if name.endswith(".weight"):
                shapes[f"{stored}_g"], shapes[f"{stored}_v"] = (shape[0], 1, 1), shape
            else:
                shapes[stored] = shape
    return shapes


def _encoder_layers(config: OobleckConfig) -> nn.Module:
    """The encoder's tensors, the decoder mirrored. Rendering never encodes sound, so it has no forward of its own."""
    widths, snake = config.widths, config.use_snake
    encoder = nn.Module()
    encoder.layers = nn.Sequential(
        nn.Conv1d(config.io_channels, widths[0], 7),
        *(_encoder_block(widths[i], widths[i + 1], stride, snake) for i, stride in enumerate(config.strides)),
        activation(widths[-1], snake),
        nn.Conv1d(widths[-1], config.latent_dim, 3),
    )
    return encoder


def _encoder_block(in_channels: int, out_channels: int, stride: int, use_snake: bool) -> nn.Module:
    block = nn.Module()
    block.layers = nn.Sequential(
        *(ResidualUnit(in_channels, dilation=1, use_snake=use_snake) for _ in range(3)),
        activation(in_channels, use_snake),
        nn.Conv1d(in_channels, out_channels, 2 * stride),
    )
    return block
