"""A weights folder whose preview is FP8, made from one in the published layout, file by file.

Each file of the preview becomes one of the same name; what names, axes, scales and metadata are says
`models.preview.quantised_source`. The other components are links into the source, or copies. An interrupted run goes on
with the first file that is not there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from magi2.checkpoints.headers import header_of
from magi2.checkpoints.layout import COMPONENTS, QUANTISED_NAME, SOURCE_KEY, CheckpointFolder, QuantisedRecord
from magi2.config.profile import Architectures
from magi2.errors import CheckpointError
from magi2.files import disk_errors, partial_file
from magi2.models.checkpoint import INDEX_NAME, SafetensorsFolder
from magi2.models.preview.config import BF16, SCALE_SUFFIX, Weights, stored_weights
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.quantised_source import (
    CHANNEL,
    SCALES_KEY,
    quantise_weight,
    quantised_names,
    to_model_axes,
)

_WEIGHTS_KEY = "magi2_weights"
_PREVIEW = "preview"


def quantise_checkpoint(
    source: Path,
    out: Path,
    architectures: Architectures,
    weights: Weights,
    *,
    copy: bool = False,
    on_file: Callable[[int, int], None] = lambda done, total: None,
) -> QuantisedRecord:
    """Make `out`, a new folder or one that was begun from the same weights, and give back what it says of itself.

    One source file's tensors are in memory at a time, in their new format, and one tensor of it as it was. `on_file` is
    told after each file how many are done, of how many. Raises: CheckpointError when the source is damaged, hollow,
    quantised already or not what `out` was begun from, when a value is NaN or infinite, or `out` is something else's;
    InfrastructureError when a disk is away or full.
    """
    given = CheckpointFolder(source)
    given.require_filled([_PREVIEW])
    files, fingerprint = SafetensorsFolder(given.folder(_PREVIEW)), given[_PREVIEW]
    if stored_weights(files.names()) != BF16:
        raise CheckpointError(f"{files.location}: is quantised already", hint="name the published weights")
    with torch.device("meta"):
        wanted = quantised_names(PreviewModel(architectures.preview, weights=weights))
    if missing := sorted(wanted - set(files.names())):
        raise CheckpointError(f"{files.location}: lacks {missing[0]}", hint="is --profile that of these weights?")
    begun = {SOURCE_KEY: fingerprint, _WEIGHTS_KEY: weights, SCALES_KEY: CHANNEL}
    folder = out / COMPONENTS[_PREVIEW].folder
    with disk_errors(out, CheckpointError):
        _require_own(out, folder, begun)
        folder.mkdir(parents=True, exist_ok=True)
        weight_map: dict[str, str] = {}
        total = len(files.files)
        for done, path in enumerate(files.files, start=1):
            names = [name for name in files.names() if files.file_of(name) == str(path)]
            if not (folder / path.name).is_file():
                _write_file(folder / path.name, files, names, wanted, begun)
            weight_map |= {name: path.name for name in _written(names, wanted)}
            on_file(done, total)
        _write_index(folder, weight_map)
        _bring_others(given, out, copy=copy)
        # Another program may have changed the source while it was read.
        if CheckpointFolder(source)[_PREVIEW] != fingerprint:
            raise CheckpointError(f"{files.location}: changed while it was read", hint=f"remove {out}, and begin again")
        record = QuantisedRecord(weights, CHANNEL, fingerprint, CheckpointFolder(out).content(_PREVIEW))
        _write_text(folder / QUANTISED_NAME, record.to_json())
    return record


def _require_own(out: Path, folder: Path, begun: dict[str, str]) -> None:
    """Raise CheckpointError unless `out` is empty or was begun with the same source and format."""
    names = {component.folder for component in COMPONENTS.values()}
    if out.exists() and (not out.is_dir() or any(path.name not in names for path in out.iterdir())):
        raise CheckpointError(f"{out} is no empty folder and no quantised one", hint="name a new folder")
    for path in sorted(folder.glob("*.safetensors")):
        said = header_of(path).get("__metadata__") or {}
        for key, value in begun.items():
            if said.get(key) != value:
                message = f"{path}: has {key} {said.get(key)!r}, this run makes {value!r}"
                raise CheckpointError(message, hint=f"name a new folder, or remove {out} where the source has changed")


def _written(names: list[str], wanted: frozenset[str]) -> list[str]:
    return names + [f"{name}{SCALE_SUFFIX}" for name in names if name in wanted]


def _write_file(
    target: Path, files: SafetensorsFolder, names: list[str], wanted: frozenset[str], begun: dict[str, str]
) -> None:
    tensors: dict[str, Tensor] = {}
    for name in names:
        if name not in wanted:
            tensors[name] = files.read(name)
            continue
        values, scales = quantise_weight(name, files.read(name), "cpu", f"{files.file_of(name)}: {name}")
        tensors[name] = to_model_axes(name, values).contiguous()  # the same exchange leads back to the published axes
        tensors[f"{name}{SCALE_SUFFIX}"] = scales
    with partial_file(target, CheckpointError) as partial:
        save_file(tensors, partial, {"format": "pt", **begun})


def _write_index(folder: Path, weight_map: dict[str, str]) -> None:
    size = sum((folder / name).stat().st_size for name in set(weight_map.values()))
    if len(set(weight_map.values())) > 1:
        content = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
        _write_text(folder / INDEX_NAME, json.dumps(content, indent=1))


def _bring_others(given: CheckpointFolder, out: Path, *, copy: bool) -> None:
    for component in COMPONENTS.values():
        source, target = given.root / component.folder, out / component.folder
        if component.name == _PREVIEW or not source.is_dir():
            continue
        if copy:
            _copy_files(source, target)
        elif not target.exists():
            target.symlink_to(source.resolve(), target_is_directory=True)


def _copy_files(source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for path in sorted(source.iterdir()):
        place = target / path.name
        if path.is_dir():
            _copy_files(path, place)
        elif not place.exists():
            with partial_file(place, CheckpointError) as partial:
                shutil.copyfile(path, partial)


def _write_text(target: Path, text: str) -> None:
    with partial_file(target, CheckpointError) as partial:
        partial.write_text(text, encoding="utf-8")
