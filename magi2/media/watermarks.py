"""Watermarks, which other packages bring: found by name, known by their code, loaded only to make a clip."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from magi2.errors import ConfigError
from magi2.files import disk_errors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Watermark: TypeAlias = "Callable[[Iterable[NDArray[np.uint8]], str], Iterable[NDArray[np.uint8]]]"

GROUP = "magi2.watermarks"
"""The entry points that name watermarks.

Each leads to a function of a clip's frames, uint8 [H, W, 3] RGB at the decoded size, and of the id under which its file
is stored, 64 hexadecimal digits. It yields as many frames of the same shape, equal ones for equal arguments.
"""


@dataclass(frozen=True)
class InstalledWatermark:
    """A watermark as recipes know it: `sha256` is over every file of the top-level package that it lies in."""

    name: str
    version: str
    sha256: str


def find_watermark(name: str, allowed: Collection[str]) -> InstalledWatermark:
    """The watermark of this name; none of its code is run.

    Raises: ConfigError when it is not among the `allowed`, not installed, or installed by two packages.
    """
    if name not in allowed:
        names = ", ".join(sorted(allowed)) or "none"
        raise ConfigError(f"delivery.watermark: {name!r} is not allowed here, MAGI2_WATERMARKS allows {names}")
    entry = _entry(name)
    version = entry.dist.version if entry.dist else "unknown"
    return InstalledWatermark(name, version, _code_digest(name, entry.module.partition(".")[0]))


def load_watermark(name: str) -> Watermark:
    """The function of an installed watermark. Raises: ConfigError when its package cannot be imported."""
    try:
        found: Watermark = _entry(name).load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"delivery.watermark: {name!r} cannot be loaded: {error}") from error
    return found


def _entry(name: str) -> EntryPoint:
    found = list(entry_points(group=GROUP, name=name))
    if len(found) != 1:
        packages = ", ".join(sorted(entry.dist.name for entry in found if entry.dist)) or "no package"
        raise ConfigError(
            f"delivery.watermark: {name!r} must come from one package, it comes from {packages}",
            hint=f"install a package with an entry point of this name in the group {GROUP}",
        )
    return found[0]


def _code_digest(name: str, package: str) -> str:
    digest = hashlib.sha256()
    files = sorted(_code_files(package))
    if not files:
        raise ConfigError(f"delivery.watermark: {name!r} has no code: there is no module {package}")
    for place, path in files:
        with disk_errors(path, ConfigError):
            digest.update(f"{place}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def _code_files(package: str) -> Iterator[tuple[str, Path]]:
    """The files of a top-level module or package, each with its place below it, without what Python compiles."""
    spec = find_spec(package)
    if spec is not None and spec.submodule_search_locations is not None:
        for folder in map(Path, spec.submodule_search_locations):
            files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
            yield from ((path.relative_to(folder).as_posix(), path) for path in files)
    elif spec is not None and spec.origin is not None and Path(spec.origin).is_file():
        yield Path(spec.origin).name, Path(spec.origin)
