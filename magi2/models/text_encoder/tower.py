"""The network: transformers' Qwen3.5 text model without its last two layers, final norm, cache and head."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Qwen3_5TextConfig, Qwen3_5TextModel
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.utils import logging as transformers_logging

from magi2.errors import CheckpointError
from magi2.models.checkpoint import LoadReport, TensorSource, load_module

# What the library has to say goes where our own log goes, and not to stderr past every level.
transformers_logging.disable_default_handler()
transformers_logging.enable_propagation()

LINEAR_ATTENTION = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule", "causal_conv1d_fn")
"""Functions of the library that it replaces by kernels of whatever other package happens to be installed."""

# No recipe knows of such a package, and its kernels choose their form by time, in each process anew: embeddings would
# depend on both. What is to be gained is little: benchmarks/README.md.
for _name in LINEAR_ATTENTION:
    setattr(modeling_qwen3_5, _name, inspect.unwrap(getattr(modeling_qwen3_5, _name)))

PREFIX = "model.language_model."
OTHER_PREFIXES = ("language_model.", "model.", "")
"""Under which the tower's tensors lie where the text model, or the tower alone, was saved again."""
# The text embedding is the third entry from the end of the list of hidden states, whose last one is the normed output
# of the last layer: the residual stream before the last two layers. Source: MAGI-2 preview engine settings.
SKIPPED_LAYERS = 2
# Parts of the published repository that a text prompt never passes through.
OUTSIDE = ("model.visual.", "visual.", "lm_head.", "mtp.")
MODEL_TYPE = "qwen3_5_text"


def read_config(folder: Path) -> dict[str, Any]:
    """The content of the folder's `config.json`. Raises: CheckpointError when it is missing or no JSON object."""
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{path}: the text encoder's config is missing")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: holds a {type(config).__name__}, not an object")
    return config


def parse_config(config: Mapping[str, Any]) -> Qwen3_5TextConfig:
    """The text tower's full architecture out of a composite config (with `text_config`) or a plain one.

    Raises: CheckpointError for another kind of model, a value transformers refuses, or too few layers to skip two.
    """
    text = config.get("text_config", config)
    if not isinstance(text, Mapping) or text.get("model_type") != MODEL_TYPE:
        found = text.get("model_type") if isinstance(text, Mapping) else text
        raise CheckpointError(f"text encoder config: model_type is {found!r}, must be {MODEL_TYPE!r}")
    try:
        parsed = Qwen3_5TextConfig.from_dict(dict(text))
    except Exception as error:  # transformers' strict dataclasses raise several types of their own
        raise CheckpointError(f"text encoder config: {error}") from error
    if parsed.num_hidden_layers <= SKIPPED_LAYERS or len(parsed.layer_types) != parsed.num_hidden_layers:
        raise CheckpointError(
            f"text encoder config: {parsed.num_hidden_layers} layers of {len(parsed.layer_types)} types, "
            f"must be equal and more than the {SKIPPED_LAYERS} that are not run"
        )
    return parsed


def build_tower(config: Qwen3_5TextConfig, *, num_layers: int, dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    """The first `num_layers` layers of the text tower on `meta`, ending in the bare residual stream (no final norm)."""
    cut = Qwen3_5TextConfig.from_dict(
        {
            **config.to_dict(),
            "num_hidden_layers": num_layers,
            "layer_types": list(config.layer_types[:num_layers]),
            "use_cache": False,
        }
    )
    with torch.device("meta"):
        tower: nn.Module = Qwen3_5TextModel(cut)
        tower.norm = nn.Identity()
    return tower.to(dtype).eval()


def load_tower(
    config: Qwen3_5TextConfig, source: TensorSource, *, device: torch.device | str, dtype: torch.dtype
) -> tuple[nn.Module, LoadReport]:
    """The tower with its weights on `device` in `dtype`; each tensor is read once, the others never.

    Raises: CheckpointError naming file and tensor on a missing, unexpected or mis-shaped one.
    """
    tower = build_tower(config, num_layers=config.num_hidden_layers - SKIPPED_LAYERS, dtype=dtype)
    prefix, num_layers = _prefix(source), config.num_hidden_layers
    report = load_module(tower, source, device=device, rename=lambda name: _tower_name(name, prefix, num_layers))
    # The rotary frequencies are in no file: computed anew off `meta`, in fp32 whatever the tower's dtype.
    tower.rotary_emb = type(tower.rotary_emb)(config).to(device)
    return tower, report


def expected_tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Stored name and shape of every tensor that the encoder reads, from the content of `config.json`."""
    parsed = parse_config(config)
    tower = build_tower(parsed, num_layers=parsed.num_hidden_layers - SKIPPED_LAYERS)
    return {PREFIX + name: tuple(tensor.shape) for name, tensor in tower.state_dict().items()}


def _prefix(source: TensorSource) -> str:
    """What stands before the tower's names in this folder: one prefix, so that no tensor can be there twice."""
    names = set(source.names())
    return next((prefix for prefix in (PREFIX, *OTHER_PREFIXES) if f"{prefix}embed_tokens.weight" in names), PREFIX)


def _tower_name(stored: str, prefix: str, num_layers: int) -> str | None:
    """The tower's name of a stored tensor; None for one that is never run. Other names pass through, to be refused."""
    if stored.startswith(OUTSIDE):
        return None
    if not stored.startswith(prefix):
        return stored
    name = stored.removeprefix(prefix)
    unread = tuple(f"layers.{index}." for index in range(num_layers - SKIPPED_LAYERS, num_layers))
    return None if name.startswith((*unread, "norm.")) else name
