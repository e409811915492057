"""The fingerprint of model weights: a digest of their content that is not computed twice for an unchanged file."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from magi2.artifacts.recipe import canonical_json, sha256_file, sha256_text
from magi2.artifacts.store import new_attempt
from magi2.errors import CheckpointError
from magi2.files import disk_errors, write_durably

logger = logging.getLogger(__name__)

SIDECAR_NAME = ".magi2-fingerprint.json"
MAX_THREADS = 16  # hashing runs at about 1.5 GB/s a thread; beyond this the disk is the limit


# A file's digest by what tells whether the file is still the same: name, size in bytes, modification time in ns.
_State: TypeAlias = tuple[str, int, int]
_Known: TypeAlias = dict[_State, str]


def checkpoint_fingerprint(
    files: Sequence[Path], sidecar: Path | None = None, *, cache_folder: Path | None = None
) -> str:
    """SHA-256 hex over the names, relative to their common folder, and the contents of weight files.

    The files' digests are computed in parallel and remembered in `sidecar` (by default a file in the common folder)
    or, when that cannot be written, in `cache_folder`. A remembered digest counts while name, size and modification
    time are the same. Order of `files`, their place and their times do not change the fingerprint.
    Raises: CheckpointError when there are no files, one is missing, or one changes while it is read.
    """
    folder = _common_folder(files)
    by_name = {path.relative_to(folder).as_posix(): path for path in sorted({path.absolute() for path in files})}
    places = [sidecar or folder / SIDECAR_NAME]
    if cache_folder is not None:
        places.append(cache_folder / f"{sha256_text(str(folder))}.json")
    known = {state: digest for place in places for state, digest in _read_sidecar(place).items()}
    current = _digests(by_name, known)
    if not current.items() <= known.items():
        names = {name for name, _, _ in current}
        _remember({state: digest for state, digest in known.items() if state[0] not in names} | current, places)
    return sha256_text(canonical_json(sorted([name, digest] for (name, _, _), digest in current.items())))


def _common_folder(files: Sequence[Path]) -> Path:
    if not files:
        raise CheckpointError("no weight files to take a fingerprint of")
    return Path(os.path.commonpath([path.absolute().parent for path in files]))


def _digests(by_name: Mapping[str, Path], known: _Known) -> _Known:
    threads = min(MAX_THREADS, len(by_name), os.cpu_count() or 1)
    with ThreadPoolExecutor(max_workers=threads) as pool:
        return dict(pool.map(lambda name: _digest(name, by_name[name], known), by_name))


def _digest(name: str, path: Path, known: _Known) -> tuple[_State, str]:
    with disk_errors(path, CheckpointError):
        state = _state(name, path)
        if state in known:
            return state, known[state]
        digest = sha256_file(path)
        after = _state(name, path)
    if state != after:
        raise CheckpointError(
            f"{path}: changed while its fingerprint was taken", hint="wait until the copy is complete"
        )
    return state, digest


def _state(name: str, path: Path) -> _State:
    status = path.stat()
    return name, status.st_size, status.st_mtime_ns


def _read_sidecar(place: Path) -> _Known:
    """What the sidecar remembers; nothing when it is absent or damaged in any way."""
    try:
        content = json.loads(place.read_bytes())
        files = content["files"]
        if content["sha256"] != sha256_text(canonical_json(files)):
            raise ValueError("its own digest does not match")
        return {(file["name"], file["size_bytes"], file["mtime_ns"]): file["sha256"] for file in files}
    except FileNotFoundError:
        return {}
    except Exception as error:  # whatever is wrong with a cache, the answer is to compute again
        logger.warning("fingerprint sidecar %s is not usable, computing again: %s", place, error)
        return {}


def _remember(digests: _Known, places: Sequence[Path]) -> None:
    files = [
        {"name": name, "size_bytes": size_bytes, "mtime_ns": mtime_ns, "sha256": digest}
        for (name, size_bytes, mtime_ns), digest in sorted(digests.items())
    ]
    content = json.dumps({"sha256": sha256_text(canonical_json(files)), "files": files}, indent=1).encode()
    for place in places:
        temporary = place.with_name(f"{place.name}.{new_attempt()}")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_durably(temporary, content)
            temporary.replace(place)
            return
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            logger.info("fingerprint sidecar %s cannot be written: %s", place, error)
    logger.warning("%s: fingerprint is kept nowhere and will be computed again", places[0].parent)
