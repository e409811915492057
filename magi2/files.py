"""Writing files so that they appear whole or not at all, and what an operating system's error means.

Some errors are the machine's, whatever file was asked for, and are always an InfrastructureError, which is retried: a
disk or quota that is full, a file system or server that is away, a device that fails to read or write, a process or
host without free file handles. All others are about the path itself (no such folder, no permission, a read-only
place, a name too long); what they stand for is up to the caller, who knows whether a user chose the path.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from magi2.errors import InfrastructureError, Magi2Error

DISK_FULL = os.strerror(errno.ENOSPC)
FREE_SPACE_HINT = "free some space and run again"

_FULL = {errno.ENOSPC, errno.EDQUOT}
_AWAY = {errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.ENOTCONN, errno.ETIMEDOUT}
_AWAY |= {errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH}
_BROKEN = {errno.EIO, errno.EREMOTEIO, errno.EMFILE, errno.ENFILE}


def is_the_machines(error: OSError) -> bool:
    """Whether an error is one of those that this module's text lists as the machine's, and may pass by itself."""
    return error.errno in _FULL | _AWAY | _BROKEN


@contextmanager
def disk_errors(place: Path, refused: type[Magi2Error] = InfrastructureError) -> Iterator[None]:
    """Turn an OSError of the block into an error that names the file concerned, or else `place`.

    Raises: InfrastructureError for the machine's errors that this module's text lists, `refused` for any other.
    """
    try:
        yield
    except OSError as error:
        raise _explained(error, str(error.filename or place), refused) from error


@contextmanager
def partial_file(target: Path, refused: type[Magi2Error] = InfrastructureError) -> Iterator[Path]:
    """A path beside `target` to write to; renamed to `target` on success, removed when the block raises.

    Raises: as `disk_errors`, for whatever the block does with files; `refused` before the block when `target` is a
    folder or its folder is missing. An OSError without a number is not the operating system's, and passes.
    """
    _check_writable(target, refused)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        try:
            yield partial
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        if error.errno is None:
            raise
        other = f": {error.filename}" if error.filename and str(error.filename) != str(partial) else ""
        raise _explained(error, f"cannot write {target}{other}", refused) from error


def _explained(error: OSError, subject: str, refused: type[Magi2Error]) -> Magi2Error:
    message = f"{subject}: {error.strerror or error}"
    if error.errno in _FULL:
        return InfrastructureError(message, hint=FREE_SPACE_HINT)
    return (InfrastructureError if is_the_machines(error) else refused)(message)


def _check_writable(target: Path, refused: type[Magi2Error]) -> None:
    if not target.parent.is_dir():
        raise refused(f"cannot write {target}: {target.parent} is not a folder")
    if target.is_dir():
        raise refused(f"cannot write {target}: it is a folder")


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
