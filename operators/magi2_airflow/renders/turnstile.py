"""How many requests are at work at once: Airflow's own routes share the threads of this process with the page's."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import anyio
from fastapi.responses import JSONResponse

from magi2_airflow.renders.asgi import App, Message, Receive, Send
from magi2_airflow.renders.lane import RETRY_AFTER_S

AT_WORK = 10
"""Each uses one thread at a time, of the 40 that all routes of a process share."""
WAITING = 30
QUEUE_S = 10.0


class Turnstile:
    """Lets `at_work` requests in and `waiting` more wait for `patience_s`; all others are told to come again (503).

    A request is at work until its answer begins: what is left, as of a file, is sent bit by bit. Paths that begin with
    one of `beside` have threads of their own, and pass.
    """

    def __init__(
        self,
        app: App,
        *,
        at_work: int = AT_WORK,
        waiting: int = WAITING,
        patience_s: float = QUEUE_S,
        beside: tuple[str, ...] = (),
    ) -> None:
        self._app = app
        self._beside = beside
        self._at_work = at_work
        self._waiting = waiting
        self._patience_s = patience_s

    @cached_property
    def _limiter(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(self._at_work)  # one belongs to an event loop, so not before the first request

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._passes(scope):
            await self._app(scope, receive, send)
            return
        borrower = object()
        if not await self._enter(borrower):
            detail = "too many are looking at once, or the catalog is slow: try again in a moment"
            busy = JSONResponse({"detail": detail}, 503, {"Retry-After": str(RETRY_AFTER_S)})
            await busy(scope, receive, send)
            return
        is_in = True

        def leave() -> None:
            nonlocal is_in
            if is_in:
                is_in = False
                self._limiter.release_on_behalf_of(borrower)

        async def send_and_leave(message: Message) -> None:
            if message["type"] == "http.response.start":
                leave()
            await send(message)

        try:
            await self._app(scope, receive, send_and_leave)
        finally:
            leave()

    def _passes(self, scope: Message) -> bool:
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        return path.startswith(self._beside)

    async def _enter(self, borrower: Any) -> bool:
        try:
            self._limiter.acquire_on_behalf_of_nowait(borrower)
            return True
        except anyio.WouldBlock:
            if self._limiter.statistics().tasks_waiting >= self._waiting:
                return False
        with anyio.move_on_after(self._patience_s) as scope:
            await self._limiter.acquire_on_behalf_of(borrower)
        return not scope.cancelled_caught
