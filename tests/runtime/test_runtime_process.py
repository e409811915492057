"""A command and its descendants as one group: started apart, ended whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from magi2.errors import InfrastructureError
from magi2.runtime import process as process_module
from magi2.runtime.log_file import open_log
from magi2.runtime.process import Members, ProcessGroup
from tests.runtime.runtime_helpers import Machine, wait_until

NESTED = """
import os, subprocess, sys, time
print("here", os.getppid(), os.getsid(0) == os.getpid(), sys.stdin.read(), flush=True)
subprocess.Popen(["sleep", "3600"], process_group=0)
subprocess.Popen(["sleep", "3600"], start_new_session=True)
subprocess.Popen(["sleep", "3600"], env={})
print("ready", flush=True)
time.sleep(3600)
"""


def start(machine: Machine, code: str, log: Path) -> ProcessGroup:
    log_fd = open_log(log)
    try:
        return ProcessGroup([sys.executable, "-c", code], environment=os.environ, log_fd=log_fd)
    finally:
        os.close(log_fd)


def test_group_with_its_own_sessions_groups_and_environments_is_ended_whole(machine: Machine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    group = start(machine, NESTED, log)
    wait_until(lambda: "ready" in log.read_text())
    assert log.read_text().splitlines()[0] == f"here {os.getpid()} True "
    # The third sleep has no environment; it is known by its session.
    assert [process.name for process in Members(group.token, group.pid).alive()][1:] == ["sleep"] * 3
    group.terminate(grace_s=5)
    assert Members(group.token, group.pid).alive() == []
    assert group.poll() == -signal.SIGTERM


def test_term_comes_before_kill_and_kill_after_the_grace(machine: Machine, tmp_path: Path) -> None:
    polite = "import signal, time; signal.signal(15, lambda *_: exit(7)); print('ready', flush=True); time.sleep(60)"
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    for name, code, grace_s, expected in (("polite", polite, 60, 7), ("deaf", deaf, 0.5, -9)):
        log = tmp_path / name
        group = start(machine, code, log)
        wait_until(lambda log=log: "ready" in log.read_text())  # type: ignore[misc]
        started = time.monotonic()
        group.terminate(grace_s)
        assert group.poll() == expected
        assert time.monotonic() - started < 30


def test_terminating_what_is_gone_is_quick_and_quiet(machine: Machine, tmp_path: Path) -> None:
    group = start(machine, "pass", tmp_path / "log")
    wait_until(lambda: group.poll() == 0)
    group.terminate(grace_s=60)
    group.terminate(grace_s=60)


def test_survivors_are_named(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = start(machine, "import time; time.sleep(3600)", tmp_path / "log")
    with monkeypatch.context() as patch:
        patch.setattr(process_module, "_KILL_TIMEOUT_S", 0.2)
        patch.setattr(Members, "kill", lambda members, timeout_s=0.2: members.alive())  # as if in the kernel for ever
        patch.setattr(Members, "signal", lambda members, number: members.alive())
        with pytest.raises(InfrastructureError, match=rf"not even SIGKILL ended {group.pid} \(python"):
            group.terminate(grace_s=0)
    group.terminate(grace_s=0)


def test_zombies_do_not_count(machine: Machine) -> None:
    child = subprocess.Popen(["true"], start_new_session=True)
    wait_until(lambda: Path(f"/proc/{child.pid}/stat").read_text().split()[2] == "Z")
    assert Members("none", child.pid).alive() == []
    child.wait()


def test_own_session_is_never_a_target() -> None:
    assert Members("none", os.getsid(0)).alive() == []


@pytest.mark.slow
def test_command_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    log_fd = open_log(tmp_path / "log")
    with pytest.raises(InfrastructureError, match="cannot start /nowhere/python"):
        ProcessGroup(["/nowhere/python"], environment={}, log_fd=log_fd)
    os.close(log_fd)


def test_child_of_a_parent_that_died_before_it_could_ask_ends_itself(machine: Machine, tmp_path: Path) -> None:
    """The parent dies between fork and the request to die with it; the child must see that by itself."""
    code = """
import os, signal, sys, time
from magi2.runtime import process
ask = process.die_with_parent
def late() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(0.2)
    ask()
process.die_with_parent = late
process.ProcessGroup(["sleep", "3600"], environment=os.environ, log_fd=2)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == -signal.SIGKILL
    machine.wait_until_empty()
