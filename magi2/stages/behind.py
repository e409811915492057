"""Work that is done behind the caller: a thread takes up what the caller hands over, while that makes the next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Queue
from types import TracebackType
from typing import Generic, Self, TypeVar

ItemT = TypeVar("ItemT")
_AHEAD = 1
"""Items that wait while one is at work: with what the caller makes there are three at most."""


class Behind(Generic[ItemT]):
    """Context manager that calls `work` with one item after the other, in order, in a thread of its own.

    `put` waits while another item waits. After `finish` all is done. Either raises what `work` raised, after which no
    item is worked on. When the block raises, what waits is dropped, unless it is at work by then; `work` must
    come to an end by itself.
    """

    def __init__(self, work: Callable[[ItemT], object]) -> None:
        self._work = work
        self._queue: Queue[ItemT | None] = Queue(_AHEAD)
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)
        self._error: BaseException | None = None
        self._is_over = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def put(self, item: ItemT) -> None:
        """Hand an item over."""
        self._queue.put(item)
        self._check()

    def finish(self) -> None:
        """Wait until everything is done; nothing can be handed over after that."""
        self._queue.put(None)
        self._thread.join()
        self._check()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if self._error is None and not self._is_over:
                try:
                    self._work(item)
                except BaseException as error:
                    self._error = error
