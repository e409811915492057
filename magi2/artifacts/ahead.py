"""Asking a far server for many things at once, as far as a bounded number of threads goes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

THREADS = 16
"""Requests that are under way at once: at 20 ms each they come to 800 a second, more than one process signs and reads.
A store's client keeps as many connections."""

T = TypeVar("T")
R = TypeVar("R")


def in_order(ask: Callable[[T], R], items: Iterable[T], *, threads: int = THREADS) -> Iterator[R]:
    """What `ask` gives for each item, in the order of the items; no more than two for each thread wait for their turn.

    An error comes in its item's turn; whoever then takes no more lets nothing begin that has not begun.
    """
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(threads, "store") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(ask, item))
                if len(waiting) >= 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
