"""Stored weights as a model with e4m3 parameters wants them: quantised as they are read, or turned where they are.

Files hold a quantised tensor under its published name and axes, and its scales beside it as `<name>_scale`: for routed
experts [M*E, out], for linear layers [sets * out]. In the model the summed axis comes last.
"""

# Shapes: M heads, E experts per head

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from magi2.errors import CheckpointError
from magi2.models.checkpoint import TensorSource
from magi2.models.preview.config import SCALE_SUFFIX
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.quantised import E4M3, Quantised, quantise

SCALES_KEY = "magi2_scales"
"""In the metadata of files: how their scales lie. Files that do not say have one for each output channel."""
CHANNEL = "channel"
_CHUNK_VALUES = 1 << 26


def quantised_names(model: PreviewModel) -> frozenset[str]:
    """The model's e4m3 parameters, which lie in files under the same names."""
    return frozenset(name for name, tensor in model.state_dict().items() if tensor.dtype == E4M3)


def check_scales(layout: str, place: str) -> None:
    """Raise CheckpointError for scales that lie as nothing here reads them, such as one for each block of 128x128."""
    if layout != CHANNEL:
        raise CheckpointError(f"{place}: its scales lie by {layout!r}, known is {CHANNEL!r} alone")


def to_model_axes(name: str, tensor: Tensor) -> Tensor:
    """A stored weight with its summed axis last: experts are stored with their input axis before their output axis."""
    return tensor.transpose(1, 2) if ".moe_mlp.W_" in f".{name}" else tensor


def quantise_weight(name: str, stored: Tensor, device: torch.device | str, place: str) -> Quantised:
    """A stored weight in the model's axes, quantised on `device` a part at a time.

    Raises: CheckpointError when a value is NaN or infinite.
    """
    weight = to_model_axes(name, stored)
    values = torch.empty(weight.shape, dtype=E4M3, device=device)
    scales = torch.empty(weight.shape[:-1], device=device)
    rows = max(1, _CHUNK_VALUES // max(1, weight[0].numel()))
    for start in range(0, len(weight), rows):
        part = quantise(weight[start : start + rows].to(device))
        values[start : start + rows], scales[start : start + rows] = part
    if not bool(scales.isfinite().all()):
        raise CheckpointError(f"{place}: holds a value that is NaN or infinite")
    return Quantised(values, scales)


class QuantisedSource:
    """A `TensorSource` of which the tensors `wanted` come as e4m3 on `device`, each followed by its scales."""

    def __init__(self, source: TensorSource, wanted: Collection[str], device: torch.device | str) -> None:
        self._source, self._wanted, self._device = source, wanted, device
        self._stored = set(source.names())
        self._scales: tuple[str, Tensor] | None = None

    @property
    def location(self) -> str:
        return self._source.location

    def names(self) -> list[str]:
        found: list[str] = []
        for name in self._source.names():
            if name in self._wanted:
                found += [name, f"{name}{SCALE_SUFFIX}"]
            elif self._scaled(name) is None:
                found.append(name)
        return found

    def file_of(self, name: str) -> str:
        return self._source.file_of(name if name in self._stored else self._scaled(name) or name)

    def shape(self, name: str) -> tuple[int, ...]:
        weight = self._scaled(name)
        if weight is None:
            return self._turned(name) if name in self._wanted else self._source.shape(name)
        return self._turned(weight)[:-1]

    def read(self, name: str) -> Tensor:
        """The tensor; scales are read right after the weight that they belong to.

        Raises: CheckpointError when a value is no number, or values and scales do not go together.
        """
        weight = self._scaled(name)
        if weight is None and name not in self._wanted:
            return self._source.read(name)
        if weight is None:
            values, scales = self._read(name)
            self._scales = (name, scales)
            return values
        if self._scales is None or self._scales[0] != weight:
            self._scales = (weight, self._read(weight).scales)
        return self._scales[1]

    def _read(self, name: str) -> Quantised:
        place = f"{self.file_of(name)}: {name}"
        stored, scales = self._source.read(name), f"{name}{SCALE_SUFFIX}"
        if (stored.dtype == E4M3) != (scales in self._stored):
            raise CheckpointError(
                f"{place}: is {stored.dtype}, and {scales} is {'' if scales in self._stored else 'not '}there"
            )
        if stored.dtype != E4M3:
            return quantise_weight(name, stored, self._device, place)
        values = to_model_axes(name, stored.to(self._device)).contiguous()
        found = self._source.read(scales)
        if found.numel() != values[..., 0].numel():
            raise CheckpointError(f"{place}: has scales {list(found.shape)} for channels {list(values.shape[:-1])}")
        return Quantised(values, found.to(self._device).float().view(values.shape[:-1]))

    def _scaled(self, name: str) -> str | None:
        """The wanted weight that `name` has the scales of."""
        weight = name.removesuffix(SCALE_SUFFIX)
        return weight if weight != name and weight in self._wanted else None

    def _turned(self, name: str) -> tuple[int, ...]:
        return tuple(to_model_axes(name, torch.empty(self._source.shape(name), device="meta")).shape)
