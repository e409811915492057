"""Two ranks that one process has forked, each into a session of its own. Linux only."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from magi2.errors import InfrastructureError, OutOfMemoryError
from magi2.runtime.launcher import Limits
from tests.runtime.runtime_helpers import QUICK, Machine, wait_for_line, wait_until


def test_killed_rank_is_named_and_ends_the_group(machine: Machine) -> None:
    machine.act("die", number=int(signal.SIGKILL), rank=1)
    with pytest.raises(InfrastructureError, match=r"rank 1 \(process \d+\) died at clip \w+ step 3/10"):
        machine.launcher().run(machine.job(ranks=2))
    assert machine.processes() == {}
    assert machine.lock_is_free()


def test_lock_is_held_by_a_rank_whose_launcher_guard_and_parent_are_gone(machine: Machine) -> None:
    machine.act("outlive_parent")
    with machine.launched(ranks=2) as launcher:
        wait_for_line(launcher, "Step")
        (parent,) = _parents(machine)
        wait_until(lambda: len(_lock_holders(machine, parent)) == 2)
        ranks = _lock_holders(machine, parent)
        for pid in (*machine.find("runtime.guard"), launcher.pid, parent):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: sorted(machine.processes()) == sorted(ranks))
        os.kill(ranks[0], signal.SIGKILL)
        wait_until(lambda: list(machine.processes()) == [ranks[1]])
        assert not machine.lock_is_free()
        os.kill(ranks[1], signal.SIGKILL)
        wait_until(machine.lock_is_free)
    for folder in machine.folder.glob("job-*"):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def _parents(machine: Machine) -> list[int]:
    """The process that has forked the ranks, which have its command line and names of their own."""
    alike = machine.find("magi2.runtime.ranks")
    return [pid for pid in alike if not Path(f"/proc/{pid}/comm").read_text().startswith("rank ")]


def _lock_holders(machine: Machine, parent: int) -> list[int]:
    """The ranks that have the accelerators' lock by a descriptor of their own."""
    ranks = [pid for pid in machine.find("stub_worker", "job.json") if pid != parent]
    return [pid for pid in ranks if any("FLOCK" in text for text in _descriptors(pid))]


def _descriptors(pid: int) -> list[str]:
    try:
        return [path.read_text() for path in Path(f"/proc/{pid}/fdinfo").iterdir()]
    except OSError:  # one was closed meanwhile: ask again
        return []


@pytest.mark.faults
def test_killed_launcher_takes_all_ranks_with_it(machine: Machine) -> None:
    machine.act("start_others")
    with machine.launched(ranks=2) as launcher:
        wait_for_line(launcher, "Step")
        launcher.kill()
        launcher.wait()
        machine.wait_until_empty()
    wait_until(machine.lock_is_free)


@pytest.mark.faults
def test_killed_parent_takes_all_ranks_with_it(machine: Machine) -> None:
    machine.act("start_others")

    def kill(event: object) -> None:
        for pid in _parents(machine):
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(InfrastructureError, match="ended by SIGKILL"):
        machine.launcher().run(machine.job(ranks=2), on_event=kill)
    assert machine.processes() == {}


@pytest.mark.faults
def test_failing_rank_is_named_with_its_class_of_error(machine: Machine) -> None:
    machine.act("fail", kind="OutOfMemoryError", message="141 GiB asked, 139 there", rank=1)
    with pytest.raises(OutOfMemoryError, match="rank 1: 141 GiB asked"):
        machine.launcher().run(machine.job(ranks=2))
    assert machine.processes() == {}


@pytest.mark.faults
def test_frozen_rank_is_named(machine: Machine) -> None:
    machine.act("freeze_rank", rank=1)
    limits = Limits(heartbeat=2.0, grace=0.5, stacks=0.2)
    with pytest.raises(
        InfrastructureError, match=r"^[^:]*: rank 1 \(clip \w+ step 3/10\) is frozen, not a word for 2 s"
    ):
        machine.launcher(limits).run(machine.job(ranks=2))
    assert machine.processes() == {}


@pytest.mark.faults
def test_rank_that_hangs_is_named_and_the_others_are_not(machine: Machine) -> None:
    machine.act("hang_rank", rank=1)
    limits = Limits(step=2.0, grace=0.5, stacks=0.5)
    with pytest.raises(InfrastructureError, match=r"^[^:]*: rank 1 \(clip \w+ step 3/10\) hangs, no progress for 2 s"):
        machine.launcher(limits).run(machine.job(ranks=2))
    assert machine.processes() == {}


@pytest.mark.faults
def test_two_ranks_finish(machine: Machine) -> None:
    machine.act("succeed")
    result = machine.launcher(QUICK).run(machine.job(ranks=2))
    assert [clip.accelerator_seconds for clip in result.clips] == [4.0, 4.0]
