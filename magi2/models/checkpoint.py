"""Reading safetensors folders and filling modules from them: strict, streaming, one tensor in memory at a time.

Modules are built on the `meta` device, so that a 228 GB model never exists twice: `load_module` reads each tensor,
casts it to the dtype the module declares, moves it to the device and puts it in place.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from magi2.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
ARCHIVE_START = b"PK\x03\x04"
ARCHITECTURE_HINT = "is the architecture in the profile the one of these weights?"


class TensorSource(Protocol):
    """Anything that lists tensors by name and reads one at a time."""

    @property
    def location(self) -> str: ...

    def names(self) -> list[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> Tensor: ...

    def file_of(self, name: str) -> str: ...


class SafetensorsFolder:
    """The tensors of a Hugging Face style folder: an index with shards, or a single `model.safetensors`.

    Only headers are read on construction. Raises CheckpointError naming the file when one is missing, truncated or
    does not hold what the index says.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file_by_name = self._scan()
        self._open: tuple[str, Any] | None = None

    @property
    def location(self) -> str:
        return str(self.folder)

    @property
    def files(self) -> list[Path]:
        """Every weight file of the folder, sorted by name."""
        return [self.folder / name for name in sorted(set(self._file_by_name.values()))]

    def names(self) -> list[str]:
        """All tensor names, grouped by file so that reading in this order opens each file once."""
        return sorted(self._file_by_name, key=lambda name: (self._file_by_name[name], name))

    def file_of(self, name: str) -> str:
        return str(self.folder / self._file_by_name[name])

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._handle(name).get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._handle(name).get_tensor(name)
        return tensor

    def metadata(self) -> Mapping[str, str]:
        """What the files say of themselves; a later file's word counts where two differ."""
        found: dict[str, str] = {}
        for path in self.files:
            found |= self._open_file(path.name).metadata() or {}
        return found

    def read_rows(self, name: str, rows: range) -> Tensor:
        """Some rows of a tensor; the others are not read."""
        tensor: Tensor = self._handle(name).get_slice(name)[rows.start : rows.stop]
        return tensor

    def _scan(self) -> dict[str, str]:
        index = self.folder / INDEX_NAME
        if index.is_file():
            try:
                weight_map = dict(json.loads(index.read_text())["weight_map"])
                if not all(isinstance(file_name, str) for file_name in weight_map.values()):
                    raise TypeError("a tensor is mapped to something that is no file name")
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise CheckpointError(f"{index}: not a safetensors index: {error}") from error
            for file_name in sorted(set(weight_map.values())):
                self._check_shard(file_name, {n for n, f in weight_map.items() if f == file_name})
            return weight_map
        single = self.folder / SINGLE_NAME
        if not single.is_file():
            raise CheckpointError(
                f"{self.folder}: neither {INDEX_NAME} nor {SINGLE_NAME} is there",
                hint="set MAGI2_CKPT_ROOT to a folder in the published layout, such as examples/demo_checkpoint",
            )
        with self._open_file(SINGLE_NAME) as handle:
            return dict.fromkeys(handle.keys(), SINGLE_NAME)

    def _check_shard(self, file_name: str, expected: set[str]) -> None:
        if Path(file_name).name != file_name:
            raise CheckpointError(f"{self.folder / INDEX_NAME}: shard name {file_name!r} leaves the folder")
        with self._open_file(file_name) as handle:
            found = set(handle.keys())
        place = self.folder / file_name
        if absent := sorted(expected - found):
            raise CheckpointError(f"{place}: the index promises {absent[0]!r}, the file lacks it")
        if unlisted := sorted(found - expected):
            raise CheckpointError(f"{place}: holds {unlisted[0]!r}, which the index does not list there")

    def _open_file(self, file_name: str) -> Any:
        path = self.folder / file_name
        if not os.path.isfile(path):
            raise CheckpointError(f"{path}: weight file is missing")
        try:
            return safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: unreadable or truncated: {error}") from error

    def _handle(self, name: str) -> Any:
        file_name = self._file_by_name[name]
        if self._open is None or self._open[0] != file_name:
            self._open = (file_name, self._open_file(file_name))
        return self._open[1]


class TensorMapping:
    """A `TensorSource` over tensors already in memory (an unpickled `.pth` or `.ckpt`)."""

    def __init__(self, tensors: Mapping[str, Tensor], *, path: Path) -> None:
        self._tensors, self._path = dict(tensors), path

    @property
    def location(self) -> str:
        return str(self._path)

    def names(self) -> list[str]:
        return sorted(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def read(self, name: str) -> Tensor:
        return self._tensors[name]

    def file_of(self, name: str) -> str:
        return str(self._path)


def read_pickled(path: Path) -> Mapping[str, Any]:
    """The top-level mapping of a `.pth` / `.ckpt` file; only plain tensors are ever unpickled.

    Archives are memory-mapped. Files in the format that torch wrote before 1.6 cannot be, and are read whole.
    Raises: CheckpointError when the file is missing, truncated, no mapping, or needs more than `weights_only` allows.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: weight file is missing")
    is_archive = zipfile.is_zipfile(path)
    if not is_archive and _begins_like_an_archive(path):
        raise CheckpointError(f"{path}: an archive of torch.save that is truncated")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
    except Exception as error:  # torch raises many types here; all of them mean the same to the user
        raise CheckpointError(f"{path}: unreadable as a weights-only checkpoint: {_reason(error)}") from error
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{path}: holds a {type(content).__name__}, not a mapping of tensors")
    return content


def _begins_like_an_archive(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(ARCHIVE_START)) == ARCHIVE_START


def _reason(error: Exception) -> str:
    """The first sentence that says what is wrong: torch's message is a page of advice to trust the file."""
    lines = str(error).splitlines() or [type(error).__name__]
    line = next((line for line in lines if "WeightsUnpickler error" in line), lines[0])
    return line.strip().partition(" Please use")[0]


@dataclass(frozen=True)
class LoadReport:
    """What `load_module` did: tensors put in place, and tensors of the file that nobody asked for."""

    loaded: int
    skipped: tuple[str, ...] = field(default=())


def load_module(
    module: nn.Module,
    source: TensorSource,
    *,
    device: torch.device | str = "cpu",
    rename: Callable[[str], str | None] = lambda name: name,
    transform: Callable[[str, Tensor], Tensor] = lambda name, tensor: tensor,
) -> LoadReport:
    """Fill a module (normally built on `meta`) from `source`, strictly in both directions.

    `rename` maps a stored name to the module's name, or to None for a tensor outside the model, which is skipped and
    listed in `module.load_report`, which is also what comes back. Stored values are cast to the dtype that the module
    declares; `transform` sees (module name, stored tensor) before the shape check. With device `meta` everything is
    checked by names and shapes, and no value is read. Raises CheckpointError naming file and tensor on a missing,
    unexpected or mis-shaped one.
    """
    slots = {name: slot for name, slot in _slots(module)}
    targets = {name: rename(name) for name in source.names()}
    skipped = tuple(name for name, target in targets.items() if target is None)
    _check_names(source, slots.keys(), {t: n for n, t in targets.items() if t is not None})
    read = partial(_shape_alone, source) if torch.device(device).type == "meta" else source.read
    for stored, target in targets.items():
        if target is not None:
            place = f"{source.file_of(stored)}: {stored}"
            # No name for the tensor here: it would outlive its turn and meet the next one in memory.
            _place(slots[target], transform(target, read(stored)), device, place)
    report = LoadReport(loaded=len(slots), skipped=skipped)
    module.load_report = report  # type: ignore[assignment]
    return report


def _shape_alone(source: TensorSource, name: str) -> Tensor:
    return torch.empty(source.shape(name), device="meta")


def _slots(module: nn.Module) -> Iterable[tuple[str, tuple[nn.Module, str]]]:
    persistent = set(module.state_dict(keep_vars=True))
    for prefix, owner in module.named_modules():
        for attribute in [*owner._parameters, *owner._buffers]:
            name = f"{prefix}.{attribute}" if prefix else attribute
            if name in persistent:
                yield name, (owner, attribute)


def _check_names(source: TensorSource, wanted: Iterable[str], stored_by_target: Mapping[str, str]) -> None:
    missing = sorted(set(wanted) - set(stored_by_target))
    if missing:
        message = f"{source.location}: {len(missing)} tensors are missing, first {missing[0]!r}"
        raise CheckpointError(message, hint=ARCHITECTURE_HINT)
    unexpected = sorted(set(stored_by_target) - set(wanted))
    if unexpected:
        stored = stored_by_target[unexpected[0]]
        raise CheckpointError(
            f"{source.file_of(stored)}: {len(unexpected)} tensors that this model does not have, first {stored!r}",
            hint=ARCHITECTURE_HINT,
        )


def _place(slot: tuple[nn.Module, str], tensor: Tensor, device: torch.device | str, place: str) -> None:
    owner, attribute = slot
    current = getattr(owner, attribute)
    if tuple(tensor.shape) != tuple(current.shape):
        raise CheckpointError(f"{place}: shape {tuple(tensor.shape)}, the model wants {tuple(current.shape)}")
    value = tensor.to(device=device, dtype=current.dtype, copy=True)
    if isinstance(current, nn.Parameter):
        value = nn.Parameter(value, requires_grad=False)
    setattr(owner, attribute, value)
