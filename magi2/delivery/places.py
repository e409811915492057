"""Where delivered files are put, create-only and never half a file: a folder, or a prefix of a bucket."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from magi2.delivery.names import folded
from magi2.errors import InfrastructureError, InputError
from magi2.files import disk_errors

if TYPE_CHECKING:
    from minio.credentials import Provider

    from magi2.artifacts.address import S3Place

NO_FILE = "no file"
"""What stands for the digest of what is there and is no plain file."""
_PARTIAL = (".magi2-", ".partial")
_LEFT_OVER_S = 86_400.0
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}


class Place(Protocol):
    """A target that is open. Names are those that `magi2.delivery.names.check_name` lets pass."""

    def digest(self, name: str) -> str | None:
        """SHA-256 of the file of this name, None when the name is free; `NO_FILE` when something else has it."""

    def put(self, source: Path, name: str) -> bool:
        """Give the name to a copy of `source`, whole or not at all. False when the name is taken."""

    def address(self, name: str) -> str:
        """Where people find the file."""

    def check(self) -> str:
        """One line on what was found. Raises: what `put` does, as far as that can be known."""


class FolderPlace:
    """A folder, below which nothing is reached through links. Folders of a name are made; the folder itself is not.

    Names that differ in nothing but case are one name. All raise: InfrastructureError for a folder that is not there,
    full or broken; InputError where a link or a file is in the way.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def digest(self, name: str) -> str | None:
        base = name.rpartition("/")[2]
        with disk_errors(self._root / name), self._folder(name, make=False) as folder:
            found = None if folder is None else next((e for e in os.listdir(folder) if folded(e) == folded(base)), None)
            return None if folder is None or found is None else _digest(found, folder)

    def put(self, source: Path, name: str) -> bool:
        base = name.rpartition("/")[2]
        with disk_errors(self._root / name), self._folder(name, make=True) as folder:
            assert folder is not None
            _sweep(folder)
            partial = secrets.token_hex(8).join(_PARTIAL)
            try:
                _copy(source, partial, folder)
                is_new = _name(partial, base, folder)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(partial, dir_fd=folder)
            os.fsync(folder)
        return is_new

    def address(self, name: str) -> str:
        return str(self._root / name)

    def check(self) -> str:
        with disk_errors(self._root), self._folder("x.mp4", make=False):
            if not os.access(self._root, os.W_OK | os.X_OK):
                raise InfrastructureError(f"{self._root}: this user may not write there")
        return f"{self._root} can be written to"

    @contextmanager
    def _folder(self, name: str, *, make: bool) -> Iterator[int | None]:
        """The folder that a name is in, open; None when it is not there and is not to be made."""
        handle = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for part in name.split("/")[:-1]:
                below = self._enter(part, handle, make=make, name=name)
                if below is None:
                    yield None
                    return
                os.close(handle)
                handle = below
            yield handle
        finally:
            os.close(handle)

    def _enter(self, part: str, folder: int, *, make: bool, name: str) -> int | None:
        if make:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=folder)
                os.fsync(folder)
        try:
            return os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            raise InputError(
                f"{self._root / name}: {part} is a link or no folder there", hint="remove it or choose another name"
            ) from error


class S3Prefix:
    """Objects of a bucket below a prefix. What makes a name create-only is `If-None-Match: *`.

    A server that ignores it is only asked before. All raise: ConfigError for credentials or a bucket that are wrong,
    InfrastructureError for a server that is away, busy or full.
    """

    def __init__(self, place: S3Place, credentials: Provider) -> None:
        from magi2.artifacts.s3 import s3_client

        self._place = place
        self._credentials = credentials
        self._client = s3_client(place.endpoint, credentials, place.region)
        prefix = place.prefix.strip("/")
        self._prefix = f"{prefix}/" if prefix else ""

    def digest(self, name: str) -> str | None:
        from minio.error import S3Error

        from magi2.artifacts.s3_requests import says_absent

        digest = hashlib.sha256()
        with self._errors(name):
            try:
                response = self._client.get_object(self._place.bucket, self._prefix + name)
            except S3Error as error:
                if says_absent(error):
                    return None
                raise
            try:
                for block in response.stream(2**20):
                    digest.update(block)
            finally:
                response.close()
                response.release_conn()
        return digest.hexdigest()

    def put(self, source: Path, name: str) -> bool:
        from magi2.artifacts.s3 import media_type
        from magi2.artifacts.s3_requests import create_object

        with disk_errors(source):
            content = source.read_bytes()
        key = self._prefix + name
        with self._errors(name):
            if not create_object(self._client, self._place.bucket, key, content, media_type(name)):
                return False
            stored = self._client.stat_object(self._place.bucket, key).size
        if stored != len(content):
            raise InfrastructureError(f"{self.address(name)}: {len(content)} bytes were sent, {stored} are there")
        return True

    def address(self, name: str) -> str:
        return f"s3://{self._place.bucket}/{self._prefix}{name}"

    def check(self) -> str:
        self.digest("magi2-doctor.mp4")
        return f"{self.address('')} at {self._place.endpoint} answers"

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        from magi2.artifacts.s3_requests import check_request, s3_errors

        place = f"{self.address(name)} at {self._place.endpoint}"
        check_request(place, self._credentials, self._place.bucket, self._prefix + name)
        with s3_errors(place):
            yield


def _digest(base: str, folder: int) -> str:
    try:
        handle = os.open(base, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):  # a link, or a socket
            raise
        return NO_FILE
    with os.fdopen(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            return NO_FILE
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _copy(source: Path, partial: str, folder: int) -> None:
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=folder)
    with os.fdopen(handle, "wb") as target, source.open("rb") as content:
        shutil.copyfileobj(content, target, 2**20)
        target.flush()
        os.fsync(target.fileno())


def _name(partial: str, base: str, folder: int) -> bool:
    """Give the synced file its name. Where there are no links the name is only asked for before."""
    try:
        os.link(partial, base, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if base in os.listdir(folder):
            return False
        os.rename(partial, base, src_dir_fd=folder, dst_dir_fd=folder)
    return True


def _sweep(folder: int) -> None:
    """Remove what deliveries that were killed left behind; one at work is younger."""
    begins, ends = _PARTIAL
    for name in os.listdir(folder):
        if name.startswith(begins) and name.endswith(ends):
            with suppress(FileNotFoundError):
                if os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime < time.time() - _LEFT_OVER_S:
                    os.unlink(name, dir_fd=folder)
