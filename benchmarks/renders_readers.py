"""What readers of a slow catalog cost the others: `python -m benchmarks.renders_readers [--readers 50] [--slow 8]`.

A real API server of Airflow (SQLite, one process) with the plugin. Readers ask for the page's lists without a pause,
and meanwhile a route of Airflow's own that uses its threads and database is timed; with a quick catalog first, then
with one whose every statement takes `--slow` seconds longer. Writes seconds and their ratio below `page` of
`benchmarks/results/faults.json`; the goal is a ratio of at most 2 at the median.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from benchmarks.faults import record
from benchmarks.renders_api import LIVE, api_server, fill

AIRFLOWS = "/api/v2/dags/~/dagRuns?limit=1"
BATCH = f"/renders/api/batches/{LIVE}"
PAGES = ("/renders/api/batches", BATCH, f"{BATCH}/clips?limit=60", "/renders/")
SLOW_CATALOG = """
import os, time
from sqlalchemy import event
from sqlalchemy.engine import Engine

@event.listens_for(Engine, "before_cursor_execute")
def wait(connection, cursor, statement, parameters, context, many):
    path = os.environ["SLOW_FILE"]
    if "catalog.sqlite" in str(connection.engine.url) and os.path.exists(path):
        time.sleep(float(open(path).read()))
"""


def main() -> None:
    """Print and record the seconds of Airflow's own route beside readers of a quick and of a slow catalog."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--slow", type=float, default=8.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        fill(folder, 200)
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(SLOW_CATALOG)
        os.environ |= {"PYTHONPATH": str(folder / "site"), "SLOW_FILE": str(folder / "slow")}
        airflow = api_server(folder)
        try:
            quick = asyncio.run(measure(airflow.url, arguments.readers, arguments.seconds))
            (folder / "slow").write_text(str(arguments.slow))
            slow = asyncio.run(measure(airflow.url, arguments.readers, arguments.seconds))
        finally:
            airflow.stop()
    ratio = round(slow["median_s"] / quick["median_s"], 2)
    command = f"python -m benchmarks.renders_readers --readers {arguments.readers} --slow {arguments.slow:g}"
    setting = {
        "command": command,
        "readers": arguments.readers,
        "catalog_slower_by_s": arguments.slow,
        "route": AIRFLOWS,
    }
    found = {**setting, "quick": quick, "slow": slow, "ratio_of_medians": ratio}
    record("page", found)
    print(json.dumps(found, indent=1))


async def measure(url: str, readers: int, seconds: float) -> dict[str, Any]:
    """Seconds that Airflow's own route took while readers asked, and how these were answered."""
    answers: Counter[str] = Counter()
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=None)) as client:
        token = await client.post("/auth/token", json={"username": "vic", "password": "vic"})
        client.headers["Authorization"] = f"Bearer {token.json()['access_token']}"
        crowd = [asyncio.create_task(read(client, PAGES[n % len(PAGES)], answers)) for n in range(readers)]
        await asyncio.sleep(min(5.0, seconds / 4))
        times = await ask(client, time.monotonic() + seconds)
        for each in crowd:
            each.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
    times.sort()
    figures = {"calls": len(times), "median_s": round(times[len(times) // 2], 3), "max_s": round(times[-1], 3)}
    return {**figures, "readers_were_answered": dict(answers)}


async def ask(client: httpx.AsyncClient, end: float) -> list[float]:
    """Ask Airflow's own route until the time has come, with a pause as a heartbeat has it."""
    times = []
    while time.monotonic() < end:
        began = time.monotonic()
        (await client.get(AIRFLOWS)).raise_for_status()
        times.append(time.monotonic() - began)
        await asyncio.sleep(0.2)
    return times


async def read(client: httpx.AsyncClient, path: str, answers: Counter[str]) -> None:
    """Ask for a page again and again; who is told to come later does."""
    while True:
        with suppress(httpx.HTTPError):
            answer = await client.get(path)
            answers[str(answer.status_code)] += 1
            await asyncio.sleep(float(answer.headers.get("retry-after", 1)))


if __name__ == "__main__":
    main()
