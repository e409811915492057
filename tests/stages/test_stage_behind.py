"""Work behind the caller: in order, never far ahead, and its failure is the caller's."""

from __future__ import annotations

import threading

import pytest

from magi2.stages.behind import Behind

WAIT_S = 30


def test_all_is_done_in_order_once_finished() -> None:
    done: list[int] = []
    with Behind(done.append) as behind:
        for number in range(20):
            behind.put(number)
        behind.finish()
        assert done == list(range(20))


def test_the_caller_goes_on_while_an_item_is_at_work_and_waits_for_the_one_before_the_last() -> None:
    goes_on, third = threading.Event(), threading.Event()

    def work(number: int) -> None:
        assert goes_on.wait(WAIT_S)

    def puts() -> None:
        behind.put(3)
        third.set()

    with Behind(work) as behind:
        behind.put(1)  # at work
        behind.put(2)  # waits
        caller = threading.Thread(target=puts)
        caller.start()
        assert not third.wait(0.05)
        goes_on.set()
        assert third.wait(WAIT_S)
        caller.join()
        behind.finish()


def test_a_failure_is_raised_where_work_is_handed_over_and_ends_the_work() -> None:
    seen: list[int] = []

    def fail(number: int) -> None:
        seen.append(number)
        raise ValueError(f"item {number}")

    with pytest.raises(ValueError, match="item 0"), Behind(fail) as behind:
        for number in range(5):
            behind.put(number)
        behind.finish()
    assert seen == [0]


def test_the_thread_ends_when_the_caller_fails() -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def work(number: int) -> None:
        begun.set()
        assert goes_on.wait(WAIT_S)

    class Ends:
        """In the place of a program that is ended on the way out."""

        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: object) -> None:
            goes_on.set()

    with pytest.raises(KeyboardInterrupt), Behind(work) as behind, Ends():
        behind.put(0)
        assert begun.wait(WAIT_S)
        behind.put(1)
        raise KeyboardInterrupt
    assert not [thread for thread in threading.enumerate() if thread.name == Behind.__name__]
