"""A few threads for one kind of route, so that what these wait for holds up nobody else's.

Airflow's server has one set of threads for all that waits, its tasks' heartbeats included.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter, WouldBlock
from anyio.lowlevel import RunVar
from fastapi import HTTPException

P = ParamSpec("P")
T = TypeVar("T")

RETRY_AFTER_S = 5


class Lane:
    """Room for `places` requests at a time, of which `threads` wait for disk, network or database at once."""

    def __init__(self, name: str, *, threads: int, places: int) -> None:
        self.name = name
        self._sizes = {"threads": threads, "places": places}
        self._limiters: RunVar[dict[str, CapacityLimiter]] = RunVar(f"lane {name}")  # an event loop has its own

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A request's stay. Raises HTTPException 503, with when to come again, if there is no room."""
        places, stay = self._limiter("places"), object()
        try:
            places.acquire_on_behalf_of_nowait(stay)
        except WouldBlock as full:
            headers = {"Retry-After": str(RETRY_AFTER_S)}
            raise HTTPException(503, f"too many ask for {self.name} at once, come again", headers) from full
        try:
            yield
        finally:
            places.release_on_behalf_of(stay)

    async def run(self, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """What the work returns, done in one of the threads, in order of arrival."""
        return await anyio.to_thread.run_sync(lambda: work(*given, **named), limiter=self._limiter("threads"))

    def _limiter(self, which: str) -> CapacityLimiter:
        try:
            return self._limiters.get()[which]
        except LookupError:
            self._limiters.set({name: CapacityLimiter(size) for name, size in self._sizes.items()})
            return self._limiters.get()[which]
