"""Durable names on a POSIX file system: steps each of which either happened or did not."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from magi2.files import make_store_folder, store_modes, sync_file, sync_folder


def make_folder(folder: Path, *, root: Path) -> None:
    """Make a folder and what leads to it, closed to others and durable up to `root`, unless another process did."""
    make_store_folder(folder, root=root)
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
        try:
            make_folder(target.parent, root=root)
            name(source, target)
            return
        except FileNotFoundError:
            if not source.exists():
                raise
            # Somebody removed the empty folder between two of these steps: make it again.


def place_file(source: Path, target: Path, *, root: Path) -> None:
    """Give a synced file the further name `target` or, across file systems, a durable copy there; closed to others."""
    source.chmod(store_modes()[1])
    try:
        link_file(source, target, root=root)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copyfile(source, target)
        target.chmod(store_modes()[1])
        sync_file(target)


def forget_pages(path: Path) -> None:
    """Have the next reader read a file from its disk or server, and not from this host's memory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


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
