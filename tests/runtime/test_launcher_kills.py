"""SIGKILL and SIGTERM to the launcher, the child, its children and ranks: nobody is left and the lock is free.

Linux only: the kernel's parent-death signal, /proc and flock are what is tested.
"""

from __future__ import annotations

import os
import signal
import time

import pytest

from magi2.errors import CancelledError, InfrastructureError
from magi2.runtime.events import Event, Step
from tests.runtime.runtime_helpers import Machine, wait_for_line, wait_until


def test_killed_launcher_takes_the_group_with_it_within_two_seconds(machine: Machine) -> None:
    machine.act("start_others")
    with machine.launched() as launcher:
        wait_for_line(launcher, "Step")
        assert not machine.lock_is_free()
        launcher.kill()
        launcher.wait()
        machine.wait_until_empty(timeout_s=2)
    wait_until(machine.lock_is_free)
    assert list(machine.folder.glob("job-*")) == []


def test_killed_launcher_and_child_leave_no_grandchild(machine: Machine) -> None:
    machine.act("start_others")
    with machine.launched() as launcher:
        wait_for_line(launcher, "Step")
        for pid in (launcher.pid, *machine.find("stub_worker")):
            os.kill(pid, signal.SIGKILL)
        launcher.wait()
        machine.wait_until_empty()
    wait_until(machine.lock_is_free)


def test_killed_launcher_and_guard_still_take_the_child_with_them(machine: Machine) -> None:
    machine.act("ignore_sigterm")
    with machine.launched() as launcher:
        wait_for_line(launcher, "Step")
        for pid in (*machine.find("runtime.guard"), launcher.pid):
            os.kill(pid, signal.SIGKILL)
        launcher.wait()
        machine.wait_until_empty()
    wait_until(machine.lock_is_free)
    for folder in machine.folder.glob("job-*"):  # this one needs somebody to clear up
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


@pytest.mark.parametrize("action", ["wait", "ignore_sigterm", "start_others"])
def test_terminated_launcher_ends_the_group_and_says_cancelled(machine: Machine, action: str) -> None:
    machine.act(action)
    with machine.launched() as launcher:
        wait_for_line(launcher, "Step")
        launcher.terminate()
        wait_for_line(launcher, "ended with cancelled")
        assert launcher.wait() == 1
    assert machine.processes() == {}
    wait_until(machine.lock_is_free)


def test_interrupted_launcher_ends_the_group(machine: Machine) -> None:
    machine.act("start_others")
    with machine.launched() as launcher:
        wait_for_line(launcher, "Step")
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(timeout=10) != 0
    machine.wait_until_empty()
    wait_until(machine.lock_is_free)


def test_killed_child_takes_its_children_with_it(machine: Machine) -> None:
    machine.act("start_others")

    def kill(event: Event) -> None:
        if isinstance(event, Step):
            os.kill(machine.find("stub_worker")[0], signal.SIGKILL)

    with pytest.raises(InfrastructureError, match="ended by SIGKILL"):
        machine.launcher().run(machine.job(), on_event=kill)
    assert machine.processes() == {}
    wait_until(machine.lock_is_free)


def test_killed_grandchild_is_the_workers_own_affair(machine: Machine) -> None:
    machine.act("start_others")
    killed: dict[int, float] = {}

    def kill(event: Event) -> None:
        if isinstance(event, Step):
            (grandchild,) = machine.find("sleep 3600")
            os.kill(grandchild, signal.SIGKILL)
            killed[grandchild] = time.monotonic()

    def goes_on_for_a_while() -> bool:
        return any(time.monotonic() > moment + 0.5 for moment in killed.values())

    with pytest.raises(CancelledError, match="stopped"):
        machine.launcher().run(machine.job(), on_event=kill, should_stop=goes_on_for_a_while)
    assert len(killed) == 1
    assert machine.processes() == {}


def test_killed_guard_is_no_harm(machine: Machine) -> None:
    machine.act("flood", megabytes=16)
    killed = []

    def kill() -> bool:
        for pid in machine.find("runtime.guard") if not killed else ():
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        return False

    assert machine.launcher().run(machine.job(), should_stop=kill).count("made") == 1


def test_lock_outlives_its_launcher_as_long_as_a_process_of_the_group_lives(machine: Machine) -> None:
    machine.act("outlive_parent")
    with machine.launched() as launcher:
        wait_for_line(launcher, "Step")
        worker = machine.find("stub_worker")[0]
        for pid in (*machine.find("runtime.guard"), launcher.pid):
            os.kill(pid, signal.SIGKILL)
        launcher.wait()
        wait_until(lambda: list(machine.processes()) == [worker])
        assert not machine.lock_is_free()
        os.kill(worker, signal.SIGKILL)
        wait_until(machine.lock_is_free)
    machine.wait_until_empty()
    for folder in machine.folder.glob("job-*"):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def test_retry_starts_as_soon_as_the_killed_attempt_is_gone(machine: Machine) -> None:
    machine.act("start_others")
    with machine.launched() as first:
        wait_for_line(first, "Step")
        first.kill()
        machine.act("succeed")
        with machine.launched(attempt=2) as second:  # which waits 10 s for the lock at most
            wait_for_line(second, "ended well")
    machine.wait_until_empty()
