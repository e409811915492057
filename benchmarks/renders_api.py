"""How quick the Renders page stays: `python -m benchmarks.renders_api [--clips 5000] [--viewers 20] [--seconds 60]`.

`--streams 20` adds people who each play a film of 16 Mbit/s all the time, `--rate 0` lets them take what they get.

A real API server of Airflow (SQLite, one process) with the plugin, on a catalog with one running batch and nine
finished ones. Each viewer, logged in, does what the page does: it opens batches, pages, filters, looks at clips, loads
thumbnails and asks again for what runs, with about a second between two calls; "airflow" is a route that is not the
plugin's. Prints percentiles by route as JSON; the
goal is 300 ms at the 95th of every route.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.error import HTTPError, URLError

import httpx

from magi2.artifacts.local import LocalStore
from magi2.artifacts.manifest import Manifest, ManifestDraft
from magi2.artifacts.recipe import Recipe
from magi2.catalog import BatchState, Catalog, NewBatch, PlannedClip, Run, RunState, open_catalog
from magi2.config.load import load_profile
from magi2.config.settings import Settings
from magi2.prompts.caption import Caption
from magi2.recipes.captions import CAPTION
from magi2.types import ARTIFACT_STAGES, Clip, StageName
from tools.local_airflow import LocalAirflow

LIVE = f"{0:016x}"
FINISHED = [f"{number:016x}" for number in range(1, 10)]
ARTIFACTS = 100
SEEDS_A_PROMPT = 5
STAGES = list(ARTIFACT_STAGES)
PICTURE = b"\xff\xd8\xff" + bytes(20_000)
FILM_BYTES = 40 * 2**20


def main() -> None:
    """Print one JSON object: milliseconds by route, and the load of the machine at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=5_000)
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two calls of a viewer, on average")
    parser.add_argument("--streams", type=int, default=0)
    parser.add_argument("--rate", type=float, default=2.0, help="megabytes a second that each of these takes, 0: all")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        clips = fill(folder, arguments.clips)
        airflow = api_server(folder)
        try:
            times = asyncio.run(watch(airflow.url, clips, arguments))
        finally:
            airflow.stop()
    routes = {route: percentiles(values) for route, values in sorted(times.items())}
    setting = {name: getattr(arguments, name) for name in ("clips", "viewers", "pause", "streams", "rate")}
    print(json.dumps({**setting, "load": round(os.getloadavg()[0], 1), "ms": routes}, indent=1))


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Calls, and milliseconds that half, 95 of 100 and all of them took at most."""
    ordered = sorted(seconds)
    at = {"p50": 0.5, "p95": 0.95, "max": 1.0}
    found = {name: ordered[min(int(share * len(ordered)), len(ordered) - 1)] for name, share in at.items()}
    return {"calls": len(ordered), **{name: round(1000 * value, 1) for name, value in found.items()}}


@dataclass(frozen=True)
class Rendered:
    """What a clip of the running batch can be asked by."""

    clip_id: str
    key: str | None


def fill(folder: Path, count: int) -> list[Rendered]:
    """Batches in a catalog and artifacts in a store; the clips of the running one."""
    store, catalog = LocalStore(folder / "store"), open_catalog(f"sqlite:///{folder}/store/catalog.sqlite")
    configs = Settings().configs
    names = ("1080p", "540p")
    digests = {name: load_profile(name, configs).digest() for name in names}
    profiles = {digests[name]: load_profile(name, configs).model_dump(mode="json") for name in names}
    delivered, captions = artifacts(store, catalog)
    for batch_id, size in [(LIVE, count), *((each, count // 10) for each in FINISHED)]:
        clips = [make_clip(batch_id, number, digests) for number in range(size)]
        planned = [PlannedClip(clip, number // 100) for number, clip in enumerate(clips)]
        batch = NewBatch(
            batch_id=batch_id,
            name=f"night {batch_id}",
            source="a.jsonl",
            clips_total=size,
            dag_id="magi2_render_batch",
            run_id=f"manual__{batch_id}",
            requested_by="ann",
        )
        catalog.batches.create(batch, profiles)
        catalog.clips.add(batch_id, planned)
        catalog.batches.mark(batch_id, BatchState.RUNNING)
        catalog.runs.finish(batch_id, runs(clips, delivered, captions, unfinished=batch_id == LIVE))
        if batch_id != LIVE:
            catalog.batches.mark(batch_id, BatchState.FAILED)
    pages = catalog.clips.search(limit=count * 2).rows
    catalog.close()
    return [Rendered(row.clip_id, row.artifact_key) for row in pages if row.batch_id == LIVE]


def artifacts(store: LocalStore, catalog: Catalog) -> tuple[list[Manifest], list[Manifest]]:
    """Delivered files and captions, which the clips share."""
    delivered, captions = [], []
    for number in range(ARTIFACTS):
        pictures = dict.fromkeys(("poster.jpg", "thumbnail.webp", "contact_sheet.jpg"), PICTURE)
        files = {"clip.mp4": bytes(100_000 if number else FILM_BYTES), **pictures}
        delivered.append(publish(store, StageName.MUX, number, files))
        text = Caption(f"a long caption of take {number}, " * 50).to_json()
        captions.append(publish(store, StageName.ENHANCE, number, {CAPTION: text}))
    catalog.artifacts.index([*delivered, *captions])
    return delivered, captions


def publish(store: LocalStore, stage: StageName, seed: int, files: dict[str, bytes]) -> Manifest:
    """An artifact with these files."""
    recipe = Recipe(stage.value, 1, seed=seed)
    with store.stage_folder(stage, recipe.key) as folder:
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return store.publish(ManifestDraft(recipe), {name: folder / name for name in files})


def make_clip(batch_id: str, number: int, digests: dict[str, str]) -> Clip:
    """Every prompt comes with some seeds, so that clips can be compared."""
    profile = "540p" if number % 4 == 0 else "1080p"
    take = number // SEEDS_A_PROMPT
    return Clip(
        prompt=f"a heron takes off from a lake at dawn, batch {batch_id}, take {take}: " + "mist over water, " * 30,
        seed=number,
        profile_name=profile,
        profile_digest=digests[profile],
        names=(f"row {number:05d}",),
        tags=(f"scene {take % 40}", "night"),
    )


def runs(clips: list[Clip], delivered: list[Manifest], captions: list[Manifest], *, unfinished: bool) -> Iterator[Run]:
    """Six of ten clips of the running batch are through, one of twenty failed, the rest are on their way."""
    began = datetime.now(UTC) - timedelta(hours=3)
    for number, clip in enumerate(clips):
        fails, share = number % 20 == 7, number % 10
        reached = STAGES if share < 6 or not unfinished else STAGES[: share - 5]
        for order, stage in enumerate(STAGES[:4] if fails else reached):
            last = fails and order == 3
            made = {StageName.MUX: delivered, StageName.ENHANCE: captions}.get(stage)
            yield Run(
                clip_id=clip.clip_id,
                stage=stage,
                state=RunState.FAILED if last else RunState.MADE,
                shard=number // 100,
                host="node1",
                started_at=began + timedelta(seconds=number),
                finished_at=began + timedelta(seconds=number + 20),
                seconds=20.0,
                accelerator_seconds=160.0,
                peak_memory_bytes=60 << 30,
                error_code="contract" if last else None,
                error=f"video has NaN at step {number % 7}" if last else None,
                artifact_key=made[number % ARTIFACTS].key if made and not last else None,
            )


def api_server(folder: Path, environment: Mapping[str, str] | None = None) -> LocalAirflow:
    """Airflow's API server alone, with a viewer who has to log in; `environment` is for it besides what it needs."""
    passwords = folder / "passwords.json"
    passwords.write_text(json.dumps({"vic": "vic"}))
    airflow = LocalAirflow(
        folder / "airflow",
        environment={
            "MAGI2_STORE": str(folder / "store"),
            "MAGI2_PRICE_PER_ACCELERATOR_HOUR": "2.5",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "vic:viewer",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
            "AIRFLOW__API__WORKERS": "1",
            **(environment or {}),
        },
    )
    airflow.home.mkdir(parents=True)
    airflow.airflow("db", "migrate")
    airflow.start("api-server")

    def answers() -> bool:
        try:
            airflow.request("GET", "/api/v2/version")
        except (RuntimeError, HTTPError, URLError, OSError):
            return False
        return True

    airflow.wait_for(answers, 300, "the API server")
    return airflow


async def watch(url: str, clips: list[Rendered], asked: argparse.Namespace) -> dict[str, list[float]]:
    """Let the viewers look; the seconds of every call by route."""
    times: dict[str, list[float]] = defaultdict(list)
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        answer = await client.post("/auth/token", json={"username": "vic", "password": "vic"})
        client.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"
        await visit(Viewer(client, random.Random(0), defaultdict(list), 0.0), clips)  # opens the catalog, fills caches
        end = time.monotonic() + asked.seconds
        people = [Viewer(client, random.Random(number), times, asked.pause) for number in range(1, asked.viewers + 1)]
        streams = (play(client, end, asked.rate, times) for _ in range(asked.streams))
        await asyncio.gather(*(until(end, person, clips, visit) for person in people), *streams)
    return times


async def play(client: httpx.AsyncClient, end: float, rate: float, times: dict[str, list[float]]) -> None:
    """Play the first film again and again; the seconds until each piece of it came."""
    while time.monotonic() < end:
        key, headers = Recipe(StageName.MUX, 1, seed=0).key, {"Range": "bytes=0-"}
        async with client.stream("GET", f"/renders/media/{key}/clip.mp4", headers=headers) as answer:
            answer.raise_for_status()
            asked = time.monotonic()
            async for piece in answer.aiter_raw(2**18):
                times["film, each 256 KiB"].append(time.monotonic() - asked)
                await asyncio.sleep(len(piece) / (rate * 1e6) if rate else 0)
                asked = time.monotonic()
                if asked > end:
                    return


@dataclass(frozen=True)
class Viewer:
    """Somebody who looks at pages, and how long each call took."""

    client: httpx.AsyncClient
    random: random.Random
    times: dict[str, list[float]]
    pause: float

    async def get(self, route: str, path: str) -> None:
        """Make a call after a pause. Raises HTTPStatusError when it is refused."""
        await asyncio.sleep(self.random.uniform(0, 2 * self.pause))
        started = time.monotonic()
        answer = await self.client.get(path)
        answer.raise_for_status()
        self.times[route].append(time.monotonic() - started)


async def until(
    end: float, person: Viewer, clips: list[Rendered], look: Callable[[Viewer, list[Rendered]], Awaitable[None]]
) -> None:
    """Let somebody look again and again until the time has come."""
    while time.monotonic() < end:
        await look(person, clips)


async def visit(person: Viewer, clips: list[Rendered]) -> None:
    """One visit: from the batches to a clip and back, asking again for what runs."""
    batch, pick = f"/renders/api/batches/{LIVE}", person.random
    await person.get("batches", "/renders/api/batches")
    await person.get("batch", batch)
    await person.get("facets", f"{batch}/facets")
    await person.get("clips", f"{batch}/clips?limit=60")
    await person.get("clips", f"{batch}/clips?limit=60&offset={pick.randrange(0, len(clips), 60)}")
    for sort in ("name", "state", "seconds", "cost"):
        await person.get(f"clips by {sort}", f"{batch}/clips?limit=60&sort={sort}&offset={pick.randrange(0, 600, 60)}")
    await person.get("clips with text", f"{batch}/clips?limit=60&text=take+{pick.randrange(1000)}")
    await person.get("clips with filters", f"{batch}/clips?limit=60&tag=scene+{pick.randrange(40)}&profile=540p")
    await person.get("failures", f"{batch}/failures")
    clip = pick.choice([each for each in clips if each.key])
    await person.get("clip", f"{batch}/clips/{clip.clip_id}")
    await person.get("neighbours", f"{batch}/clips/{clip.clip_id}/neighbours?sort=state")
    await person.get("others", f"{batch}/clips/{clip.clip_id}/others")
    await person.get("thumbnail", f"/renders/media/{clip.key}/thumbnail.webp")
    await person.get("airflow", "/api/v2/version")
    await person.get("plain batch", f"/renders/batches/{LIVE}")
    for _ in range(3):
        await person.get("batch", batch)


if __name__ == "__main__":
    main()
