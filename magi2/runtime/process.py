"""A command with all the processes it starts, as one group that lives and dies together. Linux only.

Sessions alone do not hold a group together: every rank of many is in a session of its own. What a descendant
cannot shed by accident is its environment, so each group has a random token there, and membership is read from /proc.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from magi2.errors import InfrastructureError

TOKEN = "_MAGI2_GROUP"
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_POLL_S = 0.02
_KILL_TIMEOUT_S = 30.0

# Found now: between fork and exec a child of a process with threads must not look anything up.
_prctl = ctypes.CDLL(None).prctl
_prctl.argtypes = [ctypes.c_int, ctypes.c_ulong]
_prctl.restype = ctypes.c_int


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when the thread that started it ends. Survives exec, not fork."""
    _prctl(_PR_SET_PDEATHSIG, number)


def name_process(name: str) -> None:
    """Give this process the name by which `ps` and errors tell it from its like; 15 bytes of it count."""
    text = ctypes.create_string_buffer(name.encode()[:15])
    _prctl(_PR_SET_NAME, ctypes.addressof(text))


@dataclass(frozen=True)
class Process:
    """A live process; `started` (clock ticks since boot) tells it from a later one with the same id."""

    pid: int
    started: int
    session: int
    name: str

    def __str__(self) -> str:
        return f"{self.pid} ({self.name})"


class Members:
    """The live processes of a group, found by their token, or by a session in which such a one was seen."""

    def __init__(self, token: str, *sessions: int) -> None:
        self._mark = f"{TOKEN}={token}".encode()
        self._sessions = set(sessions)
        self._known: set[tuple[int, int]] = set()

    def alive(self) -> list[Process]:
        """Who is not dead yet, oldest first. A dying process has no environment any more: it is remembered."""
        ours = os.getsid(0)
        found = [process for process in _processes() if process.session != ours and self._has(process)]
        self._known |= {(process.pid, process.started) for process in found}
        self._sessions |= {process.session for process in found}
        return sorted(found, key=lambda process: process.started)

    def signal(self, number: int) -> list[Process]:
        """Send a signal to everybody alive, and say who that was."""
        processes = self.alive()
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
        return processes

    def kill(self, timeout_s: float = _KILL_TIMEOUT_S) -> list[Process]:
        """SIGKILL until nobody is left; who still is after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (survivors := self.signal(signal.SIGKILL)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return survivors

    def _has(self, process: Process) -> bool:
        if process.session in self._sessions or (process.pid, process.started) in self._known:
            return True
        try:
            return self._mark in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False  # gone meanwhile, or another user's


class ProcessGroup:
    """A running command and its descendants."""

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], log_fd: int, pass_fds: Sequence[int] = ()
    ) -> None:
        """Start the command in a session of its own, without stdin, both outputs into `log_fd`.

        It gets SIGKILL when the calling thread ends, so that thread must outlive it.
        Raises: InfrastructureError when it cannot be started.
        """
        self.token = secrets.token_hex(16)
        parent = os.getpid()

        def before_exec() -> None:
            die_with_parent()
            if os.getppid() != parent:  # it died before the kernel knew what to do about it
                os._exit(128 + signal.SIGKILL)

        try:
            self._leader = subprocess.Popen(
                command,
                env={**environment, TOKEN: self.token},
                stdin=subprocess.DEVNULL,
                stdout=log_fd,
                stderr=log_fd,
                start_new_session=True,
                pass_fds=pass_fds,
                preexec_fn=before_exec,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise InfrastructureError(f"cannot start {command[0]}: {error}") from error
        self._members = Members(self.token, self.pid)

    @property
    def pid(self) -> int:
        """The command's process id, which is its session's and its process group's as well."""
        return self._leader.pid

    def poll(self) -> int | None:
        """The command's exit code, minus the signal's number if one ended it; None while it runs."""
        return self._leader.poll()

    def terminate(self, grace_s: float) -> None:
        """End every process: SIGTERM, after `grace_s` SIGKILL, and see that they are gone.

        Raises: InfrastructureError naming those that are not.
        """
        deadline = time.monotonic() + grace_s
        if self._members.signal(signal.SIGTERM):
            while self._leader.poll() is None or self._members.alive():
                if time.monotonic() >= deadline:
                    break
                time.sleep(_POLL_S)
        survivors = self._members.kill()
        if survivors:
            raise InfrastructureError(f"not even SIGKILL ended {', '.join(map(str, survivors))}")
        self._leader.wait()


def this_process() -> str:
    """What tells this process from every other, of this host or another, now or later."""
    found = _process(os.getpid())
    assert found is not None, "a process that runs is in /proc"
    return " ".join((socket.gethostname(), _boot_id(), _pid_space(), str(found.pid), str(found.started)))


def has_ended(identity: str) -> bool:
    """Whether the process that `this_process` once named is known to be gone.

    Of one on another host, or in another container of this one, nobody here knows: it counts as alive.
    """
    host, boot, space, pid, started = identity.rsplit(" ", 4)
    if host != socket.gethostname():
        return False
    if boot != _boot_id():
        return True
    found = _process(int(pid))
    return space == _pid_space() and (found is None or str(found.started) != started)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_space() -> str:
    return os.readlink("/proc/self/ns/pid")


def _processes() -> list[Process]:
    """Every process of the host but zombies, which are dead and only wait for their parents, and this one."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [process for pid in pids if pid != os.getpid() and (process := _process(pid)) is not None]


def _process(pid: int) -> Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    if fields[0] in "ZX":
        return None
    return Process(pid, started=int(fields[19]), session=int(fields[3]), name=name)
