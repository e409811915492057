"""Writing files so that they appear whole or not at all, and what an operating system's error means.

Some errors are the machine's, whatever file was asked for, and are always an InfrastructureError, which is retried: a
disk or quota that is full, a file system or server that is away, a device that fails to read or write, a process or
host without free memory, locks or file handles. All others are about the path itself (no such folder, no permission, a
read-only place, a name too long); what they stand for is up to the caller, who knows whether a user chose the path.
Libraries that raise errors of their own quote the system's, and mean the same. Of a file system or server that is away
it is an AwayError.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from magi2.errors import AwayError, ConfigError, InfrastructureError, Magi2Error, in_one_line

FREE_SPACE_HINT = "free some space and run again"

_FULL = {errno.ENOSPC, errno.EDQUOT}
_AWAY = {errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.ENOMEDIUM, errno.ENOTCONN, errno.ETIMEDOUT, errno.ENOLINK}
_AWAY |= {errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.ENONET}
_AWAY |= {errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ESHUTDOWN, errno.EKEYEXPIRED}
_BROKEN = {errno.EIO, errno.EREMOTEIO, errno.EUCLEAN, errno.EBADMSG, errno.EPROTO, errno.ECOMM}
_SHORT = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOLCK, errno.EAGAIN, errno.EBUSY, errno.EFBIG}
_MACHINES = _FULL | _AWAY | _BROKEN | _SHORT
_BY_NUMBER = re.compile(r"\(os error (\d+)\)")  # how libraries written in Rust quote the system
_PLAIN = (*_FULL, errno.EIO, errno.ESTALE)  # whose words mean nothing else when a program says them


def is_the_machines(error: OSError) -> bool:
    """Whether an error is one of those that this module's text lists as the machine's, and may pass by itself."""
    return error.errno in _MACHINES


def error_of_a_program(message: str, said: str, refused: type[Magi2Error]) -> Magi2Error:
    """The error for a program that failed: the machine's when its words name a disk that is full, broken or away."""
    number = _quoted(said)
    if number is None:
        return refused(message)
    return _of_the_machine(number, message)


def machine_error(error: Exception) -> InfrastructureError | None:
    """The error in the class of those that may pass, when the operating system is behind it.

    Of what was raised from an error of the system, as an error of this project is, only where that is the machine's.
    None for any other error, and for one that is retried as it is.
    """
    found = None if isinstance(error, Magi2Error) and error.retryable else _system_error(error)
    if found is None:
        return None
    message = error.args[0] if isinstance(error, Magi2Error) else f"{type(error).__name__}: {in_one_line(error)}"
    return _of_the_machine(found.errno, message)


def _of_the_machine(number: int | None, message: str) -> InfrastructureError:
    if number in _AWAY:
        return AwayError(message)
    return InfrastructureError(message, hint=FREE_SPACE_HINT if number in _FULL else None)


def _system_error(error: BaseException) -> OSError | None:
    """The operating system's error that this one is or quotes; of those behind it, one that is the machine's."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    is_ours = isinstance(error, Magi2Error)
    number = None if is_ours else _quoted(str(error))
    if number is not None:
        return OSError(number, os.strerror(number))
    if isinstance(error, OSError):
        return error
    implied = None if is_ours or error.__suppress_context__ else error.__context__
    cause = error.__cause__ or implied
    found = _system_error(cause) if cause else None
    return found if found and is_the_machines(found) else None


def _quoted(text: str) -> int | None:
    """The number of the system's error that a text quotes by number, or in the system's words if it is plain."""
    if by_number := _BY_NUMBER.search(text):
        return int(by_number[1])
    return next((number for number in _PLAIN if os.strerror(number) in text), None)


@contextmanager
def disk_errors(place: Path, refused: type[Magi2Error] = InfrastructureError) -> Iterator[None]:
    """Turn an OSError of the block, or what quotes one, into an error that names the file concerned, or else `place`.

    Raises: InfrastructureError for the machine's errors that this module's text lists, `refused` for any other.
    """
    try:
        yield
    except Magi2Error:
        raise
    except Exception as error:
        found = _system_error(error)
        if found is None:
            raise
        raise _explained(found, str(found.filename or place), refused) from error


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
    except Magi2Error:
        raise
    except Exception as error:
        found = _system_error(error)
        if found is None or found.errno is None:
            raise
        other = f": {found.filename}" if found.filename and str(found.filename) != str(partial) else ""
        raise _explained(found, f"cannot write {target}{other}", refused) from error


def _explained(error: OSError, subject: str, refused: type[Magi2Error]) -> Magi2Error:
    message = f"{subject}: {error.strerror or error}"
    return _of_the_machine(error.errno, message) if is_the_machines(error) else refused(message)


def _check_writable(target: Path, refused: type[Magi2Error]) -> None:
    if not target.parent.is_dir():
        raise refused(f"cannot write {target}: {target.parent} is not a folder")
    if target.is_dir():
        raise refused(f"cannot write {target}: it is a folder")


def private_folder(path: Path, what: str = "what is in it proves nothing") -> Path:
    """The folder, made if need be and closed to others.

    Raises: ConfigError when it is a link, no folder or another user's, saying `what` follows; InfrastructureError when
    it cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = path.lstat()
    except FileExistsError as error:
        raise ConfigError(f"{path}: is not a folder") from error
    except OSError as error:
        raise InfrastructureError(f"{path}: {error.strerror}") from error
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid():
        raise ConfigError(f"{path}: is a link or belongs to another user, so {what}")
    if stat.S_IMODE(state.st_mode) & 0o077:
        path.chmod(0o700)
    return path


def store_modes() -> tuple[int, int]:
    """Modes of folders and files of a store: this user's alone, or also group 0's, where users of containers are."""
    is_container = os.getgid() == 0 and os.getuid() != 0
    return (0o770, 0o660) if is_container else (0o700, 0o600)


def make_store_folder(folder: Path, *, root: Path) -> None:
    """Make a folder and what leads to it from `root` on, closed to others; what is there already stays as it is.

    Raises: FileNotFoundError where somebody removed an empty one meanwhile; who shares the folders tries again.
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    mode, _ = store_modes()
    for place in (*(parent for parent in reversed(folder.parents) if parent.is_relative_to(root)), folder):
        try:
            place.mkdir(mode=mode)
        except FileExistsError:
            found = place.lstat().st_mode  # one look, since it may go and come while it is looked at
            if not (stat.S_ISDIR(found) or (stat.S_ISLNK(found) and place.is_dir())):
                raise
            continue
        place.chmod(mode)  # whatever the umask took away


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


def write_durably(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write a new file and wait until its content is on the disk. Its name is not, before `sync_folder`."""
    with path.open("xb") as stream:
        if mode is not None:
            os.fchmod(stream.fileno(), mode)
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
