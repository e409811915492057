"""Media have threads of their own: however many look at them, and whatever these wait for, all else goes on."""

from __future__ import annotations

import threading
from collections import Counter

import anyio
import httpx
import pytest

from magi2.artifacts import Payload
from magi2_airflow.renders.app import app
from magi2_airflow.renders.lane import RETRY_AFTER_S, Lane
from tests.operators.renders.renders_site import BATCH, Site


class StuckStore:
    """Reads of a store that wait until they are let go, and how many of them wait at most."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        self.let_go, self.most, self._now, self._lock = threading.Event(), 0, 0, threading.Lock()
        self._read = site.deployment.store.read
        monkeypatch.setattr(site.deployment.store, "read", self.read)

    def read(self, stage: str, key: str, payload: Payload, start: int, stop: int) -> bytes:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        self.let_go.wait(60)
        with self._lock:
            self._now -= 1
        return self._read(stage, key, payload, start, stop)


def people() -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app)
    return httpx.AsyncClient(transport=transport, base_url="http://airflow", headers={"X-Role": "viewer"})


def test_other_routes_answer_while_every_thread_of_media_waits(own_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    store, statuses = StuckStore(own_site, monkeypatch), Counter[int]()

    async def look() -> None:
        async with people() as client, anyio.create_task_group() as group:

            async def watch() -> None:
                statuses[(await client.get(f"/media/{own_site.key('fox')}/clip.mp4")).status_code] += 1

            for _ in range(60):  # more than the server has threads for all else
                group.start_soon(watch)
            while store.most < 8:
                await anyio.sleep(0.01)
            with anyio.fail_after(60):
                for path in ("/api/batches", f"/api/batches/{BATCH}/clips", "/static/plain.css"):
                    assert (await client.get(path)).status_code == 200
            assert not statuses
            store.let_go.set()

    anyio.run(look)
    assert (statuses, store.most) == ({200: 60}, 8)


def test_whoever_finds_no_room_is_told_when_to_come_again(own_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    store, refused, statuses = StuckStore(own_site, monkeypatch), anyio.Event(), Counter[int]()
    lane = Lane("media", threads=1, places=2)
    for module in ("media", "streaming"):
        monkeypatch.setattr(f"magi2_airflow.renders.{module}.LANE", lane)

    async def look() -> None:
        async with people() as client, anyio.create_task_group() as group:

            async def watch() -> None:
                answer = await client.get(f"/media/{own_site.key('fox')}/clip.mp4")
                statuses[answer.status_code] += 1
                if answer.status_code == 503:
                    assert answer.headers["retry-after"] == str(RETRY_AFTER_S)
                    refused.set()

            for _ in range(3):
                group.start_soon(watch)
            with anyio.fail_after(60):
                await refused.wait()
            store.let_go.set()

    anyio.run(look)
    assert statuses == {200: 2, 503: 1}

    async def look_again() -> None:
        async with people() as client:
            for _ in range(4):
                assert (await client.get(f"/media/{own_site.key('fox')}/clip.mp4")).status_code == 200

    anyio.run(look_again)


class Idler:
    """A viewer who asks for a file and then takes nothing of it."""

    def __init__(self, path: str) -> None:
        self.is_sent = anyio.Event()
        self._scope = {
            **{"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""},
            **{"headers": [(b"x-role", b"viewer")], "client": None, "server": None, "scheme": "http"},
        }

    async def look(self) -> None:
        await app(self._scope, self._receive, self._send)  # type: ignore[arg-type]

    async def _receive(self) -> dict[str, object]:
        await anyio.sleep_forever()
        return {}

    async def _send(self, message: dict[str, object]) -> None:
        if message["type"] == "http.response.body":
            self.is_sent.set()
            await anyio.sleep_forever()


@pytest.fixture
def one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Lane("media", threads=1, places=1)
    for module in ("media", "streaming"):
        monkeypatch.setattr(f"magi2_airflow.renders.{module}.LANE", lane)


@pytest.mark.usefixtures("one_place")
def test_a_viewer_has_a_place_until_all_is_sent_or_they_leave(own_site: Site) -> None:
    path, statuses = f"/media/{own_site.key('fox')}/clip.mp4", []

    async def look() -> None:
        idler = Idler(path)
        async with people() as client:
            async with anyio.create_task_group() as group:
                group.start_soon(idler.look)
                with anyio.fail_after(60):
                    await idler.is_sent.wait()
                statuses.append((await client.get(path)).status_code)
                group.cancel_scope.cancel()
            statuses.append((await client.get(path)).status_code)

    anyio.run(look)
    assert statuses == [503, 200]


@pytest.mark.usefixtures("one_place")
def test_a_viewer_who_takes_nothing_gives_the_place_to_others(own_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magi2_airflow.renders.streaming.STALLED_S", 0.05)
    path = f"/media/{own_site.key('fox')}/clip.mp4"

    async def look() -> int:
        with anyio.fail_after(60):
            await Idler(path).look()
        async with people() as client:
            return (await client.get(path)).status_code

    assert anyio.run(look) == 200
