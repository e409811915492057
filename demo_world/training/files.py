"""Writing weights so that a run which is cut short leaves the last whole file behind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from magi2.files import partial_file


def save_weights(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a safetensors file, whose folder is made if need be; a file of that name is replaced at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with partial_file(path) as partial:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, partial)
