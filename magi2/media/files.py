"""Files appear whole or not at all: written under a temporary name in the same folder, then renamed."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from magi2.errors import InfrastructureError, MediaError

DISK_FULL = "No space left on device"


@contextmanager
def partial_file(target: Path) -> Iterator[Path]:
    """A path beside `target` to write to; renamed to `target` on success, removed when the block raises.

    Raises: MediaError naming `target` when it cannot be written, InfrastructureError when the disk is full.
    """
    check_writable(target)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        yield partial
        with disk_errors(target):
            partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def disk_errors(target: Path) -> Iterator[None]:
    """Turn an OSError of the block into an error that names `target`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"cannot write {target}: {DISK_FULL}"
            raise InfrastructureError(message, hint="free some space and run again") from error
        raise MediaError(f"cannot write {target}: {error.strerror or error}") from error


def check_writable(target: Path) -> None:
    """Raise MediaError when `target` cannot become a file: no such folder, or a folder of that name."""
    if not target.parent.is_dir():
        raise MediaError(f"cannot write {target}: {target.parent} is not a folder")
    if target.is_dir():
        raise MediaError(f"cannot write {target}: it is a folder")
