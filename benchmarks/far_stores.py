"""What a store far away costs: `python -m benchmarks.far_stores [--seaweedfs 1000 5000] [--memory 5000 50000]`.

Clips that were never rendered (real recipes, manifests and documents, payloads of a few bytes, batches of 1,000) lie in
SeaweedFS behind a line that adds 20 ms to every answer, or in a server in memory that takes 20 ms for each. Every work
runs in a process of its own, whose seconds, CPU seconds and peak memory are told, and the requests where the server
counts them. Goals: a rerun of 1,000 finished clips in 60 s, a plan of 50,000 in 10 minutes, retention and rebuild of
50,000 in 20 minutes each, memory that does not grow with the store.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from minio.credentials import StaticProvider

from benchmarks.far.clips import clips_of, far_book, plan_of, put_batch
from benchmarks.far.line import SlowLine
from benchmarks.far.server import BUCKET, FarS3
from benchmarks.far.weed import seaweedfs
from magi2.artifacts.s3 import S3Store
from magi2.batches.plan import save_plan
from magi2.batches.retention import RetentionPolicy, collect_garbage
from magi2.batches.told import told_to
from magi2.catalog import Catalog, open_catalog
from magi2.catalog.rebuild import rebuild
from magi2.catalog.verify import verify
from magi2.catalog.whereabouts import rendered_in
from magi2.report.build import build_report, save_report

RESULTS = Path(__file__).parent / "results" / "far_stores.json"
LATENCY_S = 0.02
BATCH = 1000
ACCESS, SECRET = "test-access", "test-secret-key"


def _rerun(store: S3Store, catalog: Catalog, clips: int) -> dict[str, Any]:
    """Plan clips of which all are finished, write the plan and the report: what a run does when nothing changed."""
    told = lambda wanted: told_to(store, rendered_in(catalog, wanted))  # noqa: E731
    plan = plan_of(store, far_book(), clips_of(far_book(), clips), f"again {time.time_ns()}", told)
    save_plan(plan, store)
    save_report(build_report(store, plan.batch_id), store)
    return {"finished": len(plan.cached)}


def _plan_new(store: S3Store, catalog: Catalog, clips: int) -> dict[str, Any]:
    plan = plan_of(store, far_book(), clips_of(far_book(), clips, first=10**6), "new")
    return {"to_render": plan.clips - len(plan.cached)}


def _rebuild(store: S3Store, catalog: Catalog, clips: int) -> dict[str, Any]:
    report = rebuild(store, catalog)
    return {"artifacts": report.artifacts, "batches": report.batches, "problems": len(report.problems)}


def _verify(store: S3Store, catalog: Catalog, clips: int) -> dict[str, Any]:
    return {"problems": sum(1 for _ in verify(store, catalog, digests=False))}


def _retention(store: S3Store, catalog: Catalog, clips: int, *, dry_run: bool) -> dict[str, Any]:
    later = datetime.now(UTC) + timedelta(days=30)
    report = collect_garbage(store, policy=RetentionPolicy(), dry_run=dry_run, now=later)
    return {"removed": len(report.removed), "needed": report.kept_needed}


WORKS: dict[str, Callable[[S3Store, Catalog, int], dict[str, Any]]] = {
    "rebuild of a lost catalog": _rebuild,
    "verify": _verify,
    "plan of new clips": _plan_new,
    "rerun of finished clips": _rerun,
    "retention, dry": partial(_retention, dry_run=True),
    "retention": partial(_retention, dry_run=False),
}


def open_far(endpoint: str, folder: Path) -> S3Store:
    """The store at a server."""
    credentials = StaticProvider(ACCESS, SECRET)
    return S3Store(BUCKET, endpoint=endpoint, region="us-east-1", credentials=credentials, scratch=folder / "scratch")


def work_here(name: str, endpoint: str, folder: Path, clips: int) -> dict[str, Any]:
    """One work in this process: what came of it, seconds, CPU seconds and peak memory."""
    began = time.monotonic()
    found = WORKS[name](open_far(endpoint, folder), open_catalog(f"sqlite:///{folder}/catalog.db"), clips)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        **found,
        "seconds": round(time.monotonic() - began, 1),
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "peak_mib": peak_mib(),
    }


def peak_mib() -> int:
    """The most memory that this process has held. What `getrusage` says of it is at least what its parent held."""
    return int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) // 1024


@contextmanager
def in_memory(clips: int, folder: Path) -> Iterator[tuple[str, Callable[[], int]]]:
    """Clips in a server of this process; its address, and the requests since it was last asked."""
    with FarS3().running() as far:
        _fill(open_far(far.endpoint, folder), far.put, clips)
        far.latency_s = LATENCY_S

        def asked() -> int:
            count = sum(far.asked.values())
            far.asked.clear()
            return count

        asked()
        yield far.endpoint, asked


@contextmanager
def in_seaweedfs(clips: int, folder: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Clips in SeaweedFS behind a slow line."""
    (folder / "weed").mkdir()
    with seaweedfs(folder / "weed") as (host, port):
        store = open_far(f"http://{host}:{port}", folder)
        _fill(store, store._replace, clips)
        line = SlowLine(host, port, LATENCY_S)
        yield line.endpoint, lambda: None
        line.close()


def _fill(store: S3Store, put: Callable[[str, bytes], None], clips: int) -> None:
    book = far_book()
    for first in range(0, clips, BATCH):
        put_batch(store, put, book, clips_of(book, min(BATCH, clips - first), first=first), f"batch {first}")


def measure(kind: str, clips: int) -> dict[str, Any]:
    """All works over so many clips, each in a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        serve = in_seaweedfs if kind == "seaweedfs" else in_memory
        found: dict[str, Any] = {}
        with serve(clips, folder) as (endpoint, asked):
            for name in WORKS:
                arguments = ["--work", name, "--endpoint", endpoint, "--folder", str(folder), "--clips", str(clips)]
                load = os.getloadavg()[0]
                done = subprocess.run(
                    [sys.executable, "-m", "benchmarks.far_stores", *arguments], check=True, capture_output=True
                )
                found[name] = {**json.loads(done.stdout), "load": round(load, 1)}
                if (count := asked()) is not None:
                    found[name]["requests_a_clip"] = round(count / clips, 2)
                print(kind, clips, name, json.dumps(found[name]), flush=True)
        return found


def main() -> None:
    """Print each work, and enter the figures in the results beside those that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seaweedfs", nargs="*", type=int, default=[1000, 5000], help="clips in SeaweedFS")
    parser.add_argument("--memory", nargs="*", type=int, default=[5000, 50000], help="clips in a server in memory")
    parser.add_argument("--out", type=Path, default=RESULTS)
    for name in ("--work", "--endpoint", "--folder"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--clips", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        print(json.dumps(work_here(given.work, given.endpoint, Path(given.folder), given.clips)))
        return
    for kind, counts in (("seaweedfs", given.seaweedfs), ("memory", given.memory)):
        for clips in counts:
            found = measure(kind, clips)
            results = json.loads(given.out.read_text()) if given.out.exists() else {}
            stores = results.setdefault("stores", {"latency_ms": LATENCY_S * 1000, "command": __doc__.split("`")[1]})
            stores[f"{kind} {clips}"] = found
            given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
