"""Durable steps on a POSIX file system, each of which either happened or did not."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from magi2.errors import InfrastructureError


@contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Turn an operating system's error into an InfrastructureError that names the file, or else `place`."""
    try:
        yield
    except OSError as error:
        raise InfrastructureError(f"{error.filename or place}: {error.strerror or error}") from error


def sync_file(path: Path) -> None:
    """Wait until the file's content is on the disk."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in the folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_durably(path: Path, content: bytes) -> None:
    """Write a new file and wait until its content is on the disk. Its name is not, before `sync_folder`."""
    with path.open("xb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def make_folder(folder: Path, *, root: Path) -> None:
    """Make a folder and what leads to it, durable up to `root`; another process may have made them a moment ago."""
    folder.mkdir(parents=True, exist_ok=True)
    for parent in folder.parents:
        sync_folder(parent)
        if parent == root:
            break


def link_file(source: Path, target: Path, *, root: Path) -> None:
    """Give a synced file the further name `target`; raises FileExistsError when the name is taken."""
    _name_file(os.link, source, target, root)


def rename_file(source: Path, target: Path, *, root: Path) -> None:
    """Give a synced file the name `target` instead of its own; who had that name is gone."""
    _name_file(os.replace, source, target, root)


def _name_file(name: Callable[[Path, Path], None], source: Path, target: Path, root: Path) -> None:
    while True:
        make_folder(target.parent, root=root)
        try:
            name(source, target)
            return
        except FileNotFoundError:
            if not source.exists():
                raise
            # Somebody removed the empty folder between the two steps: make it again.


def place_file(source: Path, target: Path, *, root: Path) -> None:
    """Give a synced file the further name `target` or, across file systems, a durable copy there."""
    try:
        link_file(source, target, root=root)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copyfile(source, target)
        sync_file(target)


def remove_if_empty(folder: Path) -> None:
    """Remove a folder unless something is in it or it is gone."""
    with suppress(OSError):
        folder.rmdir()


def remove_tree(path: Path) -> None:
    """Remove a file or a folder with what is in it; none may be there any more."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def last_change(path: Path) -> float:
    """When a file, or the youngest file in a folder, was last written, linked or renamed; infinity once it is gone."""
    try:
        states = [path.lstat(), *(item.lstat() for item in path.rglob("*"))] if path.is_dir() else [path.lstat()]
    except FileNotFoundError:
        return float("inf")
    return max(max(state.st_mtime, state.st_ctime) for state in states)
