"""Filling a turbo decoder from the published folder: a JSON configuration and a pickled `checkpoint.ckpt`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor, nn

from magi2.errors import CheckpointError
from magi2.models.checkpoint import TensorMapping, load_module, read_pickled
from magi2.models.turbo_vae.config import TurboDecoderConfig
from magi2.models.turbo_vae.decoder import TurboDecoder
from magi2.models.turbo_vae.frames import convolution_layout
from magi2.models.turbo_vae.parallelize import ParallelTurboDecoder
from magi2.parallel.mesh import Mesh

logger = logging.getLogger(__name__)

CONFIG_NAME = "TurboV3-Wan22-TinyShallow_7_7.json"
WEIGHTS_NAME = "checkpoint.ckpt"
# The averaged weights of training win over the plain ones.
STATE_KEYS = ("ema_state_dict", "state_dict")
PREFIX = "decoder."
# Projections that aligned the decoder's features with a teacher's in training; decoding never runs them.
TRAINING_ONLY = "aligned_feature_projection"


@overload
def load_turbo_decoder(
    folder: Path, *, device: torch.device | str, dtype: torch.dtype = torch.bfloat16, mesh: None = None
) -> TurboDecoder: ...


@overload
def load_turbo_decoder(
    folder: Path, *, device: torch.device | str, dtype: torch.dtype = torch.bfloat16, mesh: Mesh | None
) -> TurboDecoder | ParallelTurboDecoder: ...


def load_turbo_decoder(
    folder: Path, *, device: torch.device | str, dtype: torch.dtype = torch.bfloat16, mesh: Mesh | None = None
) -> TurboDecoder | ParallelTurboDecoder:
    """The decoder that `folder` describes, in `dtype` on `device`; with a `mesh` its ranks share each clip's windows.

    Of the checkpoint only the decoder is read: its `ema_state_dict`, else its `state_dict`, else the whole mapping;
    names may start with `module.`, and with `decoder.` unless no name does. Other networks and the training-only
    projection heads, wherever they are, are skipped; every other difference is an error.
    Raises: CheckpointError naming the file and the tensor that is missing, mis-shaped or unexpected; ConfigError when
    the configuration asks for another network.
    """
    config = TurboDecoderConfig.from_json(folder / CONFIG_NAME)
    path = folder / WEIGHTS_NAME
    state = _state(read_pickled(path), path)
    with torch.device("meta"):
        decoder = TurboDecoder(config, compute_dtype=dtype)
    is_prefixed = any(name.startswith((PREFIX, "encoder.")) for name in state)

    def rename(name: str) -> str | None:
        if TRAINING_ONLY in name or (is_prefixed and not name.startswith(PREFIX)):
            return None
        return name if is_prefixed else PREFIX + name

    report = load_module(decoder, TensorMapping(state, path=path), device=device, rename=rename)
    logger.info("loaded %d tensors of %s", report.loaded, path)
    if report.skipped:
        logger.info("skipped %d tensors of %s that decoding does not need", len(report.skipped), path)
        logger.debug("skipped in %s: %s", path, ", ".join(report.skipped))
    for conv in (module for module in decoder.modules() if isinstance(module, nn.Conv3d)):
        conv.to(memory_format=convolution_layout(conv.weight.device))  # type: ignore[call-overload]
    return decoder if mesh is None or mesh.world.size == 1 else ParallelTurboDecoder(decoder, mesh.world)


def _state(content: Mapping[str, Any], path: Path) -> dict[str, Tensor]:
    """The decoder's tensors under names without the `module.` that data-parallel training puts in front."""
    state = next((content[key] for key in STATE_KEYS if key in content), content)
    if not isinstance(state, Mapping):
        raise CheckpointError(f"{path}: the state is a {type(state).__name__}, not a mapping of tensors")
    tensors = {name.removeprefix("module."): value for name, value in state.items() if isinstance(value, Tensor)}
    if len(tensors) < sum(isinstance(value, Tensor) for value in state.values()):
        raise CheckpointError(f"{path}: some tensors are there twice, with and without 'module.' in front")
    return tensors
