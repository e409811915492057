"""Host-local locks, on accelerators or on a piece of work, that the kernel frees when their holder's last process ends.

A lock belongs to the open file, not to a process: whoever inherits the descriptor keeps it locked. It is therefore
never unlocked, only closed, by the launcher and, through their death, by all processes the launcher gave it to.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from magi2.artifacts.address import canonical_address
from magi2.artifacts.recipe import Recipe
from magi2.errors import CancelledError, InfrastructureError
from magi2.runtime.job import Devices
from magi2.runtime.run_folder import run_folder

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_TELL_S = 10.0


@dataclass(frozen=True)
class HeldLock:
    """Open, locked files; `fds` are to be passed to every process that must keep them locked."""

    fds: tuple[int, ...]

    def describe(self, *, group: int | None = None, title: str = "") -> None:
        """Write into the lock files, for people, who holds them."""
        since = datetime.now(UTC).isoformat(timespec="seconds")
        text = f"group {group or 'not started'}, launcher {os.getpid()}, since {since}, {title}\n".encode()
        for fd in self.fds:
            os.pwrite(fd, text, 0)
            os.ftruncate(fd, len(text))


@contextmanager
def accelerator_lock(
    devices: Devices,
    *,
    timeout_s: float,
    on_wait: Callable[[str], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    folder: Path | None = None,
) -> Iterator[HeldLock]:
    """Hold the host's accelerators, all or those of the given indices, against every other group of this user.

    `on_wait` hears, at once and then every 10 s, what the present holder wrote. An empty tuple locks nothing.
    Raises: InfrastructureError after `timeout_s`; CancelledError as soon as `should_stop` says so; ConfigError when
    `folder` is not this user's own.
    """
    # A part is held as a share of the whole plus its own files, always in this order: no deadlock.
    wanted = [("accelerators.lock", fcntl.LOCK_EX if devices == "all" else fcntl.LOCK_SH)] if devices else []
    parts = () if devices == "all" else sorted(set(devices))
    wanted += [(f"accelerator-{index}.lock", fcntl.LOCK_EX) for index in parts]
    with _hold(run_folder(folder), wanted, _Wait(time.monotonic() + timeout_s, on_wait, should_stop)) as held:
        yield held


@contextmanager
def work_lock(
    store: str,
    stage: str,
    key: str,
    *,
    timeout_s: float,
    on_wait: Callable[[str], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    folder: Path | None = None,
) -> Iterator[HeldLock]:
    """Hold what a stage makes under `key` in the store of this address against every other group of this user here.

    The rest is as with `accelerator_lock`. The file goes at the end; it stays, free, where the holder was killed.
    """
    name = hashlib.sha256("\0".join((canonical_address(store), stage, key)).encode()).hexdigest()[:32]
    place, wanted = run_folder(folder), [(f"work-{name}.lock", fcntl.LOCK_EX)]
    try:
        with _hold(place, wanted, _Wait(time.monotonic() + timeout_s, on_wait, should_stop)) as held:
            yield held
    finally:
        _remove_if_free(place / wanted[0][0])


def artifact_locks(store: str, on_wait: Callable[[], None]) -> Callable[[Recipe], AbstractContextManager[None]]:
    """What makes locks of recipes, each held inside its context by one process of this user and host at a time.

    They are for renders on the CPU, which no lock on accelerators keeps apart. Who had to wait for one finds the
    artifact in the store of this address. There is no limit: the kernel frees what a dead process held. `on_wait` is
    called at once and then every 10 s.
    """

    @contextmanager
    def lock(recipe: Recipe) -> Iterator[None]:
        def tell(holder: str) -> None:
            on_wait()
            logger.info("artifact %s/%s: waits for %s", recipe.stage, recipe.key, holder)

        with work_lock(store, recipe.stage, recipe.key, timeout_s=math.inf, on_wait=tell):
            yield

    return lock


@contextmanager
def _hold(place: Path, wanted: Sequence[tuple[str, int]], wait: _Wait) -> Iterator[HeldLock]:
    """Lock the files of these names, each in its mode of `flock`, one after the other."""
    fds: list[int] = []
    try:
        for name, mode in wanted:
            fds.append(_acquire(place / name, mode, wait))
        held = HeldLock(tuple(fds))
        held.describe()
        yield held
    finally:
        for fd in fds:
            os.close(fd)


@dataclass
class _Wait:
    deadline: float
    on_wait: Callable[[str], None] | None
    should_stop: Callable[[], bool] | None
    told_at: float = -_TELL_S

    def once(self, path: Path) -> None:
        """Wait a moment. Raises when it was the last."""
        now = time.monotonic()
        if self.should_stop and self.should_stop():
            raise CancelledError(f"stopped while waiting for {path.name}")
        if now >= self.deadline:
            raise InfrastructureError(f"{path}: still locked by {_holder(path)}")
        if self.on_wait and now - self.told_at >= _TELL_S:
            self.told_at = now
            self.on_wait(_holder(path))
        time.sleep(_POLL_S)


def _acquire(path: Path, mode: int, wait: _Wait) -> int:
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise InfrastructureError(f"{path}: {error.strerror}") from error
        try:
            fcntl.flock(fd, mode | fcntl.LOCK_NB)
            if _is_at(fd, path):
                return fd
            os.close(fd)  # somebody removed the file after we opened it: a lock on it excludes nobody
        except BlockingIOError:
            os.close(fd)
            wait.once(path)
        except OSError as error:
            os.close(fd)
            raise InfrastructureError(f"{path}: cannot be locked: {error.strerror}") from error
        except BaseException:
            os.close(fd)
            raise


def _remove_if_free(path: Path) -> None:
    """Remove the file of a lock that nobody holds: whoever has it open already will see that it is not there."""
    with suppress(OSError):
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(fd, path):
                path.unlink()
        finally:
            os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()[:200] or "somebody who wrote nothing"
    except OSError:
        return "somebody unknown"
