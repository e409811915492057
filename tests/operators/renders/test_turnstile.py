"""However many look at a catalog that does not answer, the other routes of the server have threads left."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import httpx
import pytest
from fastapi import FastAPI

from magi2.errors import InfrastructureError
from magi2_airflow.renders import media, turnstile
from magi2_airflow.renders.app import app
from magi2_airflow.renders.deployment import PageDeployment, deployment
from magi2_airflow.renders.turnstile import AT_WORK, WAITING, Turnstile
from tests.operators.renders.renders_site import BATCH, Site

READERS = 100
TURNED_AWAY = READERS - AT_WORK - WAITING
HANG_S = 60


class Slow:
    """A catalog that answers nobody before it is `free`, and how many threads ask it at once."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.asking = self.most = 0
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self.asking += 1
            self.most = max(self.most, self.asking)
        assert self.free.wait(HANG_S)
        with self._lock:
            self.asking -= 1


@pytest.fixture
def slow() -> Iterator[Slow]:
    found = Slow()
    yield found
    found.free.set()


def run(work: Callable[[httpx.AsyncClient], Awaitable[None]], server: FastAPI) -> None:
    async def main() -> None:
        transport = httpx.ASGITransport(server)
        headers = {"X-Role": "viewer"}
        async with httpx.AsyncClient(transport=transport, base_url="http://airflow", headers=headers) as client:
            await asyncio.wait_for(work(client), HANG_S)

    asyncio.run(main())


def server_with(page: object) -> FastAPI:
    server = FastAPI()
    server.mount("/renders", page)  # type: ignore[arg-type]

    @server.get("/heartbeat")
    def heartbeat() -> str:
        return "alive"

    return server


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def test_unrelated_route_is_answered_while_all_readers_are_blocked(site: Site, slow: Slow) -> None:
    def blocked() -> PageDeployment:
        slow()
        return site.deployment

    app.dependency_overrides[deployment] = blocked

    async def work(client: httpx.AsyncClient) -> None:
        paths = ["/renders/api/batches", f"/renders/api/batches/{BATCH}", "/renders/metrics", "/renders/"]
        readers = [asyncio.create_task(client.get(paths[n % len(paths)])) for n in range(READERS)]
        await until(lambda: slow.asking == AT_WORK and sum(each.done() for each in readers) == TURNED_AWAY)
        assert (await client.get("/heartbeat")).json() == "alive"
        turned_away = [each.result() for each in readers if each.done()]
        assert {(each.status_code, each.headers["retry-after"]) for each in turned_away} == {(503, "5")}
        assert {each.headers["cache-control"] for each in turned_away} == {"no-store"}
        slow.free.set()
        answers = Counter(each.status_code for each in await asyncio.gather(*readers))
        assert answers == {200: AT_WORK + WAITING, 503: TURNED_AWAY}

    run(work, server_with(app))
    assert slow.most == AT_WORK


def test_reader_does_not_wait_for_ever_and_the_next_finds_a_place(slow: Slow) -> None:
    page = FastAPI()
    page.get("/slow")(lambda: slow())
    served = server_with(Turnstile(page, at_work=1, waiting=5, patience_s=0.2))  # type: ignore[arg-type]

    async def work(client: httpx.AsyncClient) -> None:
        first = asyncio.create_task(client.get("/renders/slow"))
        await until(lambda: slow.asking == 1)
        assert (await client.get("/renders/slow")).status_code == 503
        slow.free.set()
        assert (await first).status_code == 200
        assert (await client.get("/renders/slow")).status_code == 200

    run(work, served)


@pytest.mark.parametrize("error", [InfrastructureError("the catalog is away"), ValueError("a bug")])
def test_request_that_fails_leaves_its_place(error: Exception) -> None:
    page = FastAPI()

    @page.get("/bad")
    def bad() -> None:
        raise error

    served = server_with(Turnstile(page, at_work=1, waiting=0, patience_s=0.2))  # type: ignore[arg-type]

    async def work(client: httpx.AsyncClient) -> None:
        for _ in range(3):
            with pytest.raises(type(error)):
                await client.get("/renders/bad")

    run(work, served)


def test_paths_with_threads_of_their_own_pass_a_full_turnstile(slow: Slow) -> None:
    page = FastAPI()
    page.get("/slow")(lambda: slow())
    page.get("/media/a")(lambda: "a clip")
    page.get("/mediation")(lambda: "a page")
    served = server_with(Turnstile(page, at_work=1, waiting=0, patience_s=0.2, beside=media.PATHS))  # type: ignore[arg-type]

    async def work(client: httpx.AsyncClient) -> None:
        first = asyncio.create_task(client.get("/renders/slow"))
        await until(lambda: slow.asking == 1)
        assert (await client.get("/renders/media/a")).json() == "a clip"
        assert (await client.get("/renders/mediation")).status_code == 503
        slow.free.set()
        assert (await first).status_code == 200

    run(work, served)


def test_places_are_fewer_than_the_threads_that_all_routes_share() -> None:
    async def threads() -> float:
        import anyio.to_thread

        return anyio.to_thread.current_default_thread_limiter().total_tokens

    assert asyncio.run(threads()) / 2 >= turnstile.AT_WORK
