"""The file that takes a group's stdout and stderr, and what of it is fit to be put into an error."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from magi2.errors import MAX_QUOTE, cut
from magi2.files import disk_errors
from magi2.runtime.run_folder import run_folder

MAX_EXCERPT = 4096
MAX_LOG_BYTES = 64 * 2**20
_KEPT_BYTES = 2**20
_DROPPED = b"[the beginning was dropped: the output grew too long]\n"
_TRACEBACK = "Traceback (most recent call last):"
_RANK = re.compile(r"\[rank\d+\]: ?")
_RECORD = re.compile(
    r"\d{4}-\d{2}-\d{2}[T ]\d{2}:|[A-Z]\d{4} \d{2}:|(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b"
    r"|[\w.]+(Error|Exception|Exit)\b|(Current t|T)hread 0x"
)
_FRAME = re.compile(r'\s+File "[^"]+", line \d+')
_SECRETS = re.compile(r"(\b[a-z][a-z0-9+]*://)([^\s/@]+@)?([^\s?\"']*)(\?[^\s\"']+)?")


def open_log(path: Path) -> int:
    """A descriptor that appends to the file, which is made, and readable, for this user alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def append_line(path: Path, line: str) -> None:
    """Put a line of our own into a log that others append to."""
    with path.open("a") as stream:
        stream.write(f"{line}\n")


def log_folder(place: Path) -> Path:
    """Where the logs of groups lie, by default, in the folder of this user's running jobs."""
    return place / "logs"


def sweep_logs(*, older_than_hours: float, dry_run: bool = False, folder: Path | None = None) -> list[str]:
    """Delete the logs of groups that nobody has written to for so long, and say which; of this host alone.

    `folder` is the launcher's. Raises: InfrastructureError when one cannot be deleted.
    """
    logs = log_folder(run_folder(folder))
    latest = time.time() - older_than_hours * 3600
    with disk_errors(logs):
        old = [path for path in sorted(logs.glob("*.log")) if path.lstat().st_mtime <= latest]
        for path in old if not dry_run else []:
            path.unlink(missing_ok=True)
    return [path.name for path in old]


def bound_log(path: Path, *, limit: int = MAX_LOG_BYTES) -> bool:
    """Drop all but the end of a log that outgrew `limit` bytes, while others append to it; whether that was needed.

    Lines written between the two steps are lost, which a flood can afford.
    """
    size = path.stat().st_size
    if size <= limit:
        return False
    tail = _read(path, size - _KEPT_BYTES)
    os.truncate(path, 0)
    with path.open("ab") as stream:
        stream.write(_DROPPED + tail)
    return True


def excerpt(path: Path, *, limit: int = MAX_EXCERPT) -> str:
    """The first traceback of a log, for that is the cause of all others, and its last lines: up to `limit` characters.

    Text that could be a prompt is cut to 200 characters wherever it stands; addresses lose credentials and queries.
    """
    traceback = "\n".join(_safe(_first_traceback(_lines(_read(path, 0, _KEPT_BYTES)))))[-(limit * 3 // 4) :]
    tail = _read(path, -4 * limit)
    # A cut through the middle of a text would show another 200 characters of it.
    cut_through = len(tail) == 4 * limit
    ending = "\n".join(_safe(_lines(tail), left=0 if cut_through else MAX_QUOTE))[-limit:]
    if traceback in ending:
        return ending
    return f"{traceback}\n[...]\n{ending[-(limit - len(traceback) - 7) :]}"


def _lines(data: bytes) -> list[str]:
    return [_RANK.sub("", line.rstrip(), count=1) for line in data.decode(errors="replace").splitlines()]


def _first_traceback(lines: list[str]) -> list[str]:
    start = next((number for number, line in enumerate(lines) if _TRACEBACK in line), None)
    if start is None:
        return []
    end = next((n for n in range(start + 1, len(lines)) if not lines[n][:1].isspace()), len(lines) - 1)
    return lines[start : end + 1]


def _safe(lines: Iterable[str], left: int = MAX_QUOTE) -> Iterator[str]:
    """The lines with every stretch of free text cut short; a record, a frame or an exception begins a new stretch.

    `left` is how many characters the stretch that the lines begin with may have.
    """
    after_frame = False
    for line in (_SECRETS.sub(_without_secrets, line) for line in lines):
        is_frame = _FRAME.match(line) is not None
        if is_frame or (after_frame and line.startswith("    ")):
            yield cut(line, MAX_QUOTE)  # a frame, or its line of code
        else:
            if _RECORD.match(line) or _TRACEBACK in line:
                left = MAX_QUOTE
            if left > 0:
                yield cut(line, left)
            left -= len(line) + 1
        after_frame = is_frame


def _without_secrets(address: re.Match[str]) -> str:
    scheme, user, rest, query = address.groups()
    return f"{scheme}{'…@' if user else ''}{rest}{'?…' if query else ''}"


def _read(path: Path, start: int, size: int = -1) -> bytes:
    """Bytes of a file from `start`, counted from the end when negative; none when there is no file."""
    try:
        with path.open("rb") as stream:
            length = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, length + start) if start < 0 else start)
            return stream.read(size)
    except FileNotFoundError:
        return b""
