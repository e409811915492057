"""What a long past costs: `python -m benchmarks.long_histories [--clips 200000] [--batches 500]`.

Fills a catalog of the version before counts were kept with batches of many months, of which the first, with `--largest`
clips, is still running; brings it to the tables of today; and measures a scrape of the metrics, `magi2 status` of the
running batch, and what the lists of the page ask of the catalog. With `--viewers 20` these people look at the page of a
real API server of Airflow, too. A tenth of the past is measured first, to compare. Writes below `catalog` of
`benchmarks/results/far_stores.json`, and prints the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

from alembic import command
from sqlalchemy import URL, Connection, insert, make_url

from benchmarks.far_results import record
from benchmarks.renders_api import LIVE, Rendered, api_server, artifacts, percentiles, watch
from magi2.artifacts.local import LocalStore
from magi2.catalog import Catalog, ClipQuery, ClipState, open_catalog
from magi2.catalog.engine import Database
from magi2.catalog.migrate import alembic_config, migrate
from magi2.catalog.overview import Overview
from magi2.catalog.pages import Pages, PageSort
from magi2.catalog.quality import Quality
from magi2.catalog.statements import chunks
from magi2.catalog.tables import ArtifactRow, Base, BatchClipRow, BatchRow, ClipRow, ProfileRow, StageRunRow
from magi2.config.load import load_profile
from magi2.config.settings import Settings
from magi2.quality.thresholds import USUAL
from magi2.report.metrics import exposition
from magi2.types import ARTIFACT_STAGES, StageName

BEFORE = "0006"
PAST = timedelta(days=250)
CLIPS_A_SHARD = 16
SEEDS_A_PROMPT = 5
FOUND_IN, FAILS_IN, RETRIED_IN, FLAGGED_IN = 10, 20, 30, 50
"""One clip of so many was finished before, fails, is tried again, has a flag."""
REPEATS = 5


def main() -> None:
    """Fill, migrate, measure; prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=200_000)
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--largest", type=int, default=50_000)
    parser.add_argument("--server", type=make_url, help="address of an empty PostgreSQL database, in place of SQLite")
    parser.add_argument("--viewers", type=int, default=0, help="people who look at the page; 0 starts no API server")
    parser.add_argument("--seconds", type=float, default=120.0)
    asked = parser.parse_args()
    found: dict[str, Any] = {}
    shares = {"all_of_it": 1} if asked.server else {"a_tenth_of_the_past": 10, "all_of_it": 1}
    for name, share in shares.items():
        with tempfile.TemporaryDirectory() as scratch:
            url = asked.server or make_url(f"sqlite:///{scratch}/store/catalog.sqlite")
            (Path(scratch) / "store").mkdir()
            past = (asked.clips - asked.largest) // share
            history = History(past + asked.largest, max(asked.batches // share, 2), asked.largest)
            found[name] = measure(Path(scratch), url, history, asked if share == 1 else None)
    kind = "postgresql" if asked.server else "sqlite"
    options = f"--clips {asked.clips} --batches {asked.batches} --largest {asked.largest}"
    options += " --server URL" * bool(asked.server) + f" --viewers {asked.viewers}" * bool(asked.viewers)
    found = {"command": f"python -m benchmarks.long_histories {options}", "load": round(os.getloadavg()[0], 1), **found}
    record("catalog", kind, found)
    print(json.dumps(found, indent=1))


@dataclass(frozen=True)
class History:
    """How much there was."""

    clips: int
    batches: int
    largest: int

    def size(self, number: int) -> int:
        """Clips of a batch; the first is the largest, and the others are alike."""
        return self.largest if number == 0 else (self.clips - self.largest) // (self.batches - 1)


def measure(folder: Path, url: URL, history: History, asked: argparse.Namespace | None) -> dict[str, Any]:
    """Seconds of everything with this much past."""
    attempts = fill(url, history)
    began, used = time.monotonic(), time.process_time()
    migrate(url)
    migration = {"wall_s": time.monotonic() - began, "cpu_s": time.process_time() - used}
    migration["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    catalog, store = open_catalog(url), LocalStore(folder / "store")
    Quality(catalog.database, USUAL).bring_up_to_date()
    result: dict[str, Any] = {
        "clips": history.clips,
        "batches": history.batches,
        "attempts": attempts,
        "migration": {name: round(value, 2) for name, value in migration.items()},
        "scrape_cpu_s": cpu_s(lambda: exposition(catalog, store, None, at=datetime.now(UTC))),
        "status_cpu_s": status_cpu_s(folder, url, LIVE),
        "status_of_all_cpu_s": status_cpu_s(folder, url),
        "asked_of_the_catalog_ms": questions(catalog),
    }
    if asked is not None and asked.viewers:
        result["page_ms"] = page_ms(folder, url, catalog, store, asked)
    catalog.close()
    return result


def page_ms(
    folder: Path, url: URL, catalog: Catalog, store: LocalStore, asked: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """What viewers waited for each route of a real API server."""
    delivered, _ = artifacts(store, catalog)
    clips = [Rendered(row.clip_id, delivered[n % len(delivered)].key) for n, row in enumerate(_some_clips(catalog))]
    airflow = api_server(folder, {"MAGI2_CATALOG": url.render_as_string(hide_password=False)})
    try:
        viewers = argparse.Namespace(viewers=asked.viewers, seconds=asked.seconds, pause=1.0, streams=0, rate=0.0)
        times = asyncio.run(watch(airflow.url, clips, viewers))
    finally:
        airflow.stop()
    return {route: percentiles(values) for route, values in sorted(times.items())}


def cpu_s(work: Callable[[], object]) -> float:
    """CPU-seconds of this process for one call, the median of some."""
    taken = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return round(median(taken), 4)


def status_cpu_s(folder: Path, url: URL, *batch: str) -> float:
    """CPU-seconds of a whole `magi2 status`, the start of the program included; the median of some.

    Python may keep what it compiles, as it does for users.
    """
    environment = {"MAGI2_STORE": str(folder / "store"), "MAGI2_CATALOG": url.render_as_string(hide_password=False)}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    taken = []
    for _ in range(REPEATS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        status = [str(Path(sys.executable).parent / "magi2"), "status", *batch]
        subprocess.run(status, env=kept | environment, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return round(median(taken), 3)


def questions(catalog: Catalog) -> dict[str, float]:
    """Milliseconds on the clock of what routes ask, one at a time, the median of some."""
    pages, overview, pick = Pages(catalog.database), Overview(catalog.database), random.Random(1)
    clips = _some_clips(catalog)
    batches = [batch.batch_id for batch in catalog.batches.search(limit=20).rows]

    def page(**query: Any) -> Callable[[], object]:
        sort = query.pop("sort", PageSort.UPDATED)
        return lambda: pages.clips(ClipQuery(batch_id=LIVE, **query), sort=sort, limit=60)

    asked: dict[str, Callable[[], object]] = {
        "batches": lambda: overview.counts(batches),
        "shards": lambda: overview.shards(LIVE),
        "facets": lambda: pages.facets(LIVE),
        "failures": lambda: pages.failures(LIVE),
        "others": lambda: pages.others(LIVE, pick.choice(clips).clip_id),
        "neighbours": lambda: pages.neighbours(ClipQuery(batch_id=LIVE), pick.choice(clips).clip_id),
        "neighbours by state": lambda: pages.neighbours(
            ClipQuery(batch_id=LIVE), pick.choice(clips).clip_id, sort=PageSort.STATE
        ),
        "clip": lambda: pages.these([(LIVE, pick.choice(clips).clip_id)]),
        **{f"clips by {sort}": page(sort=sort) for sort in PageSort},
        "clips of a state": page(state=ClipState.DONE),
        "clips with text": lambda: page(text=f"take {pick.randrange(1000)}")(),
        "clips with filters": lambda: page(tag=f"scene {pick.randrange(40)}", profile="540p")(),
        "clips with a flag": page(flag="any"),
    }
    found = {}
    for name, work in asked.items():
        taken = []
        for _ in range(REPEATS):
            began = time.monotonic()
            work()
            taken.append(time.monotonic() - began)
        found[name] = round(1000 * median(taken), 1)
    return found


def _some_clips(catalog: Catalog) -> list[Any]:
    return list(catalog.clips.search(ClipQuery(batch_id=LIVE, state=ClipState.DONE), limit=5_000).rows)


def fill(url: URL, history: History) -> int:
    """Enter the past into tables of the version before; how many attempts there are."""
    database = Database(url)
    database.write(lambda connection: command.upgrade(alembic_config(connection), BEFORE))
    configs = Settings().configs
    profiles = [load_profile(name, configs) for name in ("1080p", "540p")]
    rows = [{"digest": each.digest(), "content": each.model_dump(mode="json")} for each in profiles]
    with database.transaction() as connection:
        _enter(connection, ProfileRow, rows)
    attempts = 0
    for number in range(history.batches):
        with database.transaction() as connection:
            attempts += _batch(connection, number, history, [each.digest() for each in profiles])
    database.close()
    return attempts


def _enter(connection: Connection, table: type[Base], rows: list[dict[str, Any]]) -> None:
    """Insert rows of the version before, which has columns of the same types, if not all of them."""
    for chunk in chunks(rows, 5_000):
        connection.execute(insert(table), chunk)


def _batch(connection: Connection, number: int, history: History, digests: list[str]) -> int:
    batch_id, size = f"{number:016x}", history.size(number)
    began = datetime.now(UTC) - (timedelta(hours=6) if number == 0 else PAST * number / history.batches)
    is_live = number == 0
    batch = {
        "batch_id": batch_id,
        "name": f"night {batch_id}",
        "source": "a.jsonl",
        "state": "running" if is_live else "failed",
        "created_at": began,
        "finished_at": None if is_live else began + timedelta(hours=9),
        "clips_total": size,
        "failure_limit": 0,
        "on_bad_rows": "refuse",
        "dag_id": "magi2_render_batch",
        "run_id": f"manual__{batch_id}",
        "requested_by": "ann",
    }
    _enter(connection, BatchRow, [batch])
    made = [_clip(batch_id, index, size, began, digests, is_live) for index in range(size)]
    _enter(connection, ClipRow, [clip for clip, *_ in made])
    _enter(connection, ArtifactRow, [file for _, file, *_ in made if file])
    _enter(connection, BatchClipRow, [row for _, _, row, _ in made])
    runs = [run for *_, each in made for run in each]
    _enter(connection, StageRunRow, runs)
    return len(runs)


def _clip(
    batch_id: str, index: int, size: int, began: datetime, digests: list[str], is_live: bool
) -> tuple[dict[str, Any], dict[str, Any] | None, dict[str, Any], list[dict[str, Any]]]:
    """A clip, its file if it has one, its row in the batch, and its attempts."""
    clip_id, take, profile = f"{batch_id}{index:048x}", index // SEEDS_A_PROMPT, index % 4 == 0
    is_found = index % FOUND_IN == 3
    fails = index % FAILS_IN == 7
    share = index / size
    reached = 4 if fails else len(ARTIFACT_STAGES) if not is_live or share < 0.6 else int((1 - share) * 10)
    is_done = is_found or reached == len(ARTIFACT_STAGES)
    state = "done" if is_done else "failed" if fails else "running" if reached else "waiting"
    ended = began + timedelta(seconds=20 * 60 * 6 * share)
    file = {
        "key": clip_id,
        "stage": "mux",
        "size_bytes": 10**7,
        "created_at": ended,
        "device": "cuda",
        "host": "node1",
        "flags": ["caption_fallback"] if index % FLAGGED_IN == 0 else [],
        "make_seconds": 20.0,
        "code_version": "1",
    }
    clip = {
        "clip_id": clip_id,
        "prompt": f"a heron takes off from a lake at dawn, batch {batch_id}, take {take}: " + "mist over water, " * 30,
        "seed": index,
        "profile_name": "540p" if profile else "1080p",
        "profile_digest": digests[profile],
        "figures": [],
    }
    row = {
        "batch_id": batch_id,
        "clip_id": clip_id,
        "names": [f"row {index:05d}"],
        "tags": [f"scene {take % 40}", "night"],
        "priority": 0,
        "shard": None if is_found else index // CLIPS_A_SHARD % 128 if is_live else index // CLIPS_A_SHARD,
        "state": state,
        "failed_stage": "refine" if state == "failed" else None,
        "reason": f"video has NaN at step {index % 7}" if state == "failed" else None,
        "artifact_key": clip_id if is_done else None,
        "updated_at": ended,
    }
    stages = [] if is_found else list(ARTIFACT_STAGES)[:reached]
    runs = [_run(row, stage, began, ended, 1, fails and stage == stages[-1]) for stage in stages]
    if runs and index % RETRIED_IN == 1:
        runs.append(_run(row, stages[-1], began, ended, 2, False))
        runs[-2] |= {"state": "failed", "error_code": "oom", "artifact_key": None}
    return clip, file if is_done else None, row, runs


def _run(
    row: dict[str, Any], stage: StageName, began: datetime, ended: datetime, attempt: int, fails: bool
) -> dict[str, Any]:
    return {
        "batch_id": row["batch_id"],
        "clip_id": row["clip_id"],
        "stage": stage.value,
        "attempt": attempt,
        "shard": row["shard"],
        "state": "failed" if fails else "made",
        "started_at": began,
        "finished_at": ended,
        "seconds": 20.25,
        "accelerator_seconds": 162.0,
        "peak_memory_bytes": 60 << 30,
        "host": "node1",
        "error_code": "contract" if fails else None,
        "error": row["reason"] if fails else None,
        "flags": ["resumed"] if attempt > 1 else [],
        "artifact_key": None if fails else row["clip_id"],
    }


if __name__ == "__main__":
    main()
