"""`python -m magi2.runtime.guard`: ends a group whose launcher was killed before it could.

The kernel ends only the launcher's own child when the launcher dies, not what that child started. This small process
waits beside the group, in no session of either, until the launcher says goodbye or is gone; then it ends whoever is
left and clears the job's folder. It holds the group's lock as long.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from magi2.runtime.process import Members, ProcessGroup


class Guard:
    """A started guard; `dismiss` once the group is gone."""

    def __init__(
        self,
        group: ProcessGroup,
        folder: Path,
        *,
        environment: Mapping[str, str],
        log_fd: int,
        pass_fds: Sequence[int] = (),
    ) -> None:
        arguments = [group.token, str(group.pid), str(os.getpid()), str(folder)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "magi2.runtime.guard", *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log_fd,
            stderr=log_fd,
            start_new_session=True,
            pass_fds=pass_fds,
        )

    def dismiss(self) -> None:
        """Let it clear up and leave, and wait until it has."""
        self._process.communicate()


def main() -> int:
    """Wait for the launcher's end, then end the group. The exit code is the number of processes that would not."""
    token, session, launcher, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _wait_for_end(launcher)
    survivors = Members(token, session).kill()
    shutil.rmtree(folder, ignore_errors=True)
    return len(survivors)


def _wait_for_end(launcher: int) -> None:
    """Until stdin closes or the launcher dies; a fork of the launcher may keep the pipe open beyond its death."""
    try:
        handle = os.pidfd_open(launcher)
    except ProcessLookupError:
        return
    if os.getppid() == launcher:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.register(sys.stdin.fileno(), select.POLLIN | select.POLLHUP)
        poll.poll()


if __name__ == "__main__":
    sys.exit(main())
