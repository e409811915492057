"""Filling the Wan2.2 halves from `Wan2.2_VAE.pth`: each reads its own tensors and leaves the other half on disk."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import Tensor, nn

from magi2.errors import CheckpointError
from magi2.models.checkpoint import TensorMapping, load_module, read_pickled
from magi2.models.video_vae.config import WanVaeConfig
from magi2.models.video_vae.decoder import WanDecoder
from magi2.models.video_vae.encoder import WanEncoder

logger = logging.getLogger(__name__)

ENCODER_PREFIXES = ("encoder.", "conv1.")
DECODER_PREFIXES = ("decoder.", "conv2.")


def load_wan_encoder(
    path: Path, config: WanVaeConfig, *, device: torch.device | str, dtype: torch.dtype = torch.float32
) -> WanEncoder:
    """The encoder in `dtype` on `device`, filled from the published file; the decoder's tensors are not read.

    Raises: CheckpointError naming the file and the tensor that is missing, mis-shaped or of neither half.
    """
    with torch.device("meta"):
        encoder = WanEncoder(config).to(dtype)
    _fill(encoder, path, other_half=DECODER_PREFIXES, device=device)
    return encoder


def load_wan_decoder(
    path: Path, config: WanVaeConfig, *, device: torch.device | str, dtype: torch.dtype = torch.float32
) -> WanDecoder:
    """The decoder in `dtype` on `device`, filled from the published file; the encoder's tensors are not read.

    Raises: CheckpointError naming the file and the tensor that is missing, mis-shaped or of neither half.
    """
    with torch.device("meta"):
        decoder = WanDecoder(config).to(dtype)
    _fill(decoder, path, other_half=ENCODER_PREFIXES, device=device)
    return decoder


def _fill(module: nn.Module, path: Path, *, other_half: tuple[str, ...], device: torch.device | str) -> None:
    content = read_pickled(path)
    for name, value in content.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(f"{path}: {name!r} is a {type(value).__name__}, not a tensor")
    report = load_module(
        module,
        TensorMapping(content, path=path),
        device=device,
        rename=lambda name: None if name.startswith(other_half) else name,
    )
    logger.info("loaded %d tensors of %s", report.loaded, path)
    logger.debug("left unread in %s: %s", path, ", ".join(report.skipped))
