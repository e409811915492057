"""A lock of the catalog lets one in at a time, and goes with its holder."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from sqlalchemy import URL

from magi2.catalog import lock as lock_module
from magi2.catalog.lock import named_locks
from magi2.errors import InfrastructureError

WRITERS = 8


@pytest.mark.slow
def test_eight_processes_are_let_in_one_at_a_time(empty_url: URL, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(WRITERS)

    def count(barrier: Barrier) -> None:
        lock = named_locks(empty_url)
        barrier.wait(30)
        for _ in range(3):
            with lock("counter"):
                value = int(counter.read_text())
                time.sleep(0.01)
                counter.write_text(str(value + 1))

    processes = [context.Process(target=count, args=(barrier,)) for _ in range(WRITERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * WRITERS
    assert counter.read_text() == str(3 * WRITERS)


@pytest.mark.slow
def test_lock_of_a_killed_process_is_free(empty_url: URL) -> None:
    context = multiprocessing.get_context("fork")

    def die() -> None:
        with named_locks(empty_url)("name"):
            os._exit(7)

    process = context.Process(target=die)
    process.start()
    process.join(60)
    assert process.exitcode == 7
    with named_locks(empty_url)("name"):
        pass


def test_lock_that_stays_held_is_a_failure_that_may_pass(empty_url: URL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "WAIT_S", 0.2)
    with named_locks(empty_url)("name"), pytest.raises(InfrastructureError), named_locks(empty_url)("name"):
        pass
    with named_locks(empty_url)("name"):
        pass


def test_what_fails_inside_a_lock_comes_out_and_frees_it(empty_url: URL) -> None:
    lock = named_locks(empty_url)
    with pytest.raises(KeyError), lock("name"):
        raise KeyError("inside")
    with lock("name"):
        pass
