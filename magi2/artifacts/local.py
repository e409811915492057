"""Artifacts in a folder of a POSIX file system (a local disk, NFS, Lustre): hard links and fsync, no locks.

A manifest appears by `link`, which creates the name or fails, and only after everything it speaks of is on the disk.
A process may die between any two lines: then there is either no artifact or a complete one, and leftovers are found
by `sweep`.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from datetime import timedelta
from pathlib import Path
from typing import Self

from magi2.artifacts.base import BlobStore
from magi2.artifacts.blobs import Blob
from magi2.artifacts.disk import forget_pages, last_change, link_file, place_file, remove_if_empty, rename_file
from magi2.artifacts.store import new_attempt
from magi2.errors import AwayError, InfrastructureError
from magi2.files import disk_errors, make_store_folder, store_modes, sync_file, sync_folder, write_durably

SCRATCH = "scratch"
_NO_LINKS = "put the store on a file system with hard links, such as ext4, xfs or NFS"


class LocalStore(BlobStore):
    """An `ArtifactStore` in `root`, which is made when first written to. `clock` gives seconds since 1970.

    A root that was there and is gone, as one that was moved or unmounted, is not made anew by an artifact or a document
    that is replaced: that is an AwayError.
    """

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.root = root.absolute()
        self._was_there = False
        super().__init__(self.root / SCRATCH, clock, scratch_root=self.root)
        self._reads_disk = False

    def __repr__(self) -> str:
        return f"LocalStore({str(self.root)!r})"

    @property
    def url(self) -> str:
        return self.root.as_uri()

    def self_test(self) -> str:
        with self.stage_folder("doctor", "0" * 64) as folder, disk_errors(self.root):
            first, second, name = folder / "first", folder / "second", folder / "name"
            write_durably(first, b"first")
            write_durably(second, b"second")
            try:
                os.link(first, name)
            except OSError as error:
                raise InfrastructureError(
                    f"{self.root}: no hard links here: {error.strerror}", hint=_NO_LINKS
                ) from error
            with suppress(FileExistsError):
                os.link(second, name)
                raise InfrastructureError(f"{self.root}: a link replaced a file; create-only writes do not work here")
            sync_folder(folder)
            second.replace(name)
            if name.read_bytes() != b"second" or first.read_bytes() != b"first":
                raise InfrastructureError(f"{self.root}: a file does not hold what was written")
            free_gib = shutil.disk_usage(self.root).free / 2**30
        return f"{self.root}: create-only links and renames work, {free_gib:.0f} GiB free"

    def _place(self, name: str) -> str:
        return str(self.root / name)

    def _read(self, name: str) -> bytes | None:
        with disk_errors(self.root / name):
            try:
                if self._reads_disk:
                    forget_pages(self.root / name)
                content = (self.root / name).read_bytes()
                self._was_there = True
                return content
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    def _size(self, name: str) -> int | None:
        with disk_errors(self.root / name):
            try:
                state = (self.root / name).lstat()
            except (FileNotFoundError, NotADirectoryError):
                return None
            return state.st_size if stat.S_ISREG(state.st_mode) else None

    @contextmanager
    def stage_folder(self, stage: str, key: str) -> Iterator[Path]:
        self._check_root()
        with super().stage_folder(stage, key) as folder:
            yield folder

    def _check_root(self) -> None:
        with disk_errors(self.root):
            is_there = self.root.is_dir()
        if self._was_there and not is_there:
            raise AwayError(f"{self.root}: was there and is gone, as a folder that is not mounted any more")
        self._was_there = is_there

    def _upload(self, path: Path, name: str, sha256: str) -> None:
        self._check_root()
        target = self.root / name
        with disk_errors(target):
            sync_file(path)
            place_file(path, target, root=self.root)
            sync_folder(target.parent)

    def _download(self, name: str) -> Path | None:
        path = self.root / name
        if self._size(name) is None:
            return None
        if self._reads_disk:
            with disk_errors(path), suppress(FileNotFoundError):
                forget_pages(path)
        return path

    def _read_part(self, name: str, start: int, stop: int) -> bytes | None:
        with disk_errors(self.root / name):
            try:
                with (self.root / name).open("rb") as file:
                    file.seek(start)
                    return file.read(stop - start)
            except (FileNotFoundError, NotADirectoryError):
                return None

    @property
    def link_origin(self) -> str:
        return "file://"

    def _link(self, name: str, expires: timedelta, save_as: str | None) -> str:
        return (self.root / name).as_uri()

    def _create(self, name: str, content: bytes) -> bool:
        target = self.root / name
        with disk_errors(target), self._temporary(content) as source:
            try:
                link_file(source, target, root=self.root)
            except FileExistsError:
                return False
            sync_folder(target.parent)
        return True

    def _replace(self, name: str, content: bytes) -> None:
        self._check_root()
        target = self.root / name
        with disk_errors(target), self._temporary(content) as source:
            rename_file(source, target, root=self.root)
            sync_folder(target.parent)

    def _copy(self, name: str, target: str) -> bool:
        with disk_errors(self.root / target):
            try:
                link_file(self.root / name, self.root / target, root=self.root)
            except FileNotFoundError:
                return False
            sync_folder((self.root / target).parent)
        return True

    def _uncached(self) -> Self:
        twin = copy(self)
        twin._reads_disk = True
        return twin

    def _delete(self, name: str) -> None:
        path = self.root / name
        with disk_errors(path), suppress(FileNotFoundError):
            path.unlink()
            sync_folder(path.parent)
            remove_if_empty(path.parent)

    def _list(self, prefix: str) -> Iterator[Blob]:
        with disk_errors(self.root / prefix):
            for folder, folders, files in os.walk(self.root / prefix, onerror=_raise_unless_absent):
                folders.sort()
                for path in (Path(folder) / file_name for file_name in sorted(files)):
                    yield Blob(path.relative_to(self.root).as_posix(), last_change(path))

    @contextmanager
    def _temporary(self, content: bytes) -> Iterator[Path]:
        """A file with this content, on the disk; gone afterwards unless it was renamed."""
        path = self._scratch / f"blob-{new_attempt()}"
        make_store_folder(path.parent, root=self.root)
        try:
            write_durably(path, content, store_modes()[1])
            yield path
        finally:
            path.unlink(missing_ok=True)


def _raise_unless_absent(error: OSError) -> None:
    """A folder that cannot be read is not empty; one that is not there, or went while it was looked for, is."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
