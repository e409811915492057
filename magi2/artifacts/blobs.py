"""What a store of one kind says: how to read, create, copy and delete a blob (a file, an object) by its name."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Blob:
    """A stored file or object: its name, relative to the store, and when it got there (seconds since 1970).

    Its bytes and the MD5 of its content, in lower-case hex, as far as a listing gives them.
    """

    name: str
    changed_at: float
    size_bytes: int | None = None
    md5: str | None = None


class Blobs(ABC):
    """Named blobs; every method raises InfrastructureError for a disk or network that fails.

    `scratch` is a local folder, `scratch_root` the one in which it lies that is closed to others, by default itself;
    `clock` gives seconds since 1970.
    """

    def __init__(
        self, scratch: Path, clock: Callable[[], float] = time.time, *, scratch_root: Path | None = None
    ) -> None:
        self._scratch = scratch
        self._scratch_root = scratch_root or scratch
        self._clock = clock

    @abstractmethod
    def _place(self, name: str) -> str:
        """Where a blob lies, for people."""

    @abstractmethod
    def _read(self, name: str) -> bytes | None:
        """The content of a small blob, or None when there is none."""

    @abstractmethod
    def _size(self, name: str) -> int | None:
        """The bytes of a blob, or None when there is none."""

    @abstractmethod
    def _upload(self, path: Path, name: str, sha256: str) -> None:
        """Store a local file of this digest, durably, under a name that nobody else has. The file stays."""

    @abstractmethod
    def _download(self, name: str) -> Path | None:
        """A local file with the blob's content, or None when there is none."""

    @abstractmethod
    def _read_part(self, name: str, start: int, stop: int) -> bytes | None:
        """The bytes `start` to `stop`, at least one, of a blob that had more than `start`; None when there is none."""

    @abstractmethod
    def _link(self, name: str, expires: timedelta, save_as: str | None) -> str:
        """An address of a blob that is there, for whoever has no credentials; to be kept as a file, if named."""

    @abstractmethod
    def _create(self, name: str, content: bytes) -> bool:
        """Store a blob whole and durably unless there is one of this name. Whether it was this call."""

    @abstractmethod
    def _replace(self, name: str, content: bytes) -> None:
        """Store a blob whole and durably, whatever there was."""

    @abstractmethod
    def _copy(self, name: str, target: str) -> bool:
        """Give a blob a further, durable one of the same content, under a name that nobody else has.

        Whether it was there.
        """

    @abstractmethod
    def _uncached(self) -> Self:
        """The same blobs, read past every cache on the way and over a connection of their own."""

    @abstractmethod
    def _delete(self, name: str) -> None:
        """Delete a blob if there is one."""

    def _delete_all(self, names: Iterable[str]) -> None:
        """Delete the blobs that there are."""
        for name in names:
            self._delete(name)

    @abstractmethod
    def _list(self, prefix: str) -> Iterator[Blob]:
        """The blobs in a folder and below, those of one folder together, in order of their names."""

    def _abort_uploads(self, latest: float, *, dry_run: bool) -> list[str]:
        """Abort uploads begun at `latest` or before and never ended; their blobs' names. Most kinds have none."""
        return []
