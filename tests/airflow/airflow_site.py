"""What the tests ask of a running Airflow, its database, its processes and the store behind it."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magi2.artifacts.local import LocalStore
from tools.local_airflow import LocalAirflow

DAG_ID = "magi2_render_batch"
QUICK = ["preview.steps=1", "text.use_negative_prompt=false", "text.max_tokens=100"]
RUN_TIMEOUT_S = 900.0


@dataclass
class Site:
    airflow: LocalAirflow
    folder: Path

    @property
    def store(self) -> LocalStore:
        return LocalStore(self.folder / "store")

    def batch(self, name: str, *rows: dict[str, Any]) -> Path:
        path = self.folder / "batches" / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(json.dumps(row) for row in rows))
        return path

    def run(self, batch: Path, **conf: Any) -> Run:
        """A run of a batch, to its end."""
        run = self.start(batch, **conf)
        run.wait()
        return run

    def start(self, batch: Path, **conf: Any) -> Run:
        values = {"batch": str(batch), "overrides": QUICK, "on_bad_rows": "skip", **conf}
        return Run(self, self.airflow.trigger(DAG_ID, values))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Rows of Airflow's database."""
        with sqlite3.connect(f"file:{self.airflow.home}/airflow.db?mode=ro", uri=True, timeout=30) as connection:
            return connection.execute(query).fetchall()

    def texts(self) -> Iterator[tuple[str, str]]:
        """Every value in Airflow's database, with its table."""
        for (table,) in self.rows("select name from sqlite_master where type = 'table'"):
            for row in self.rows(f'select * from "{table}"'):
                yield from ((table, value if isinstance(value, str) else repr(value)) for value in row)

    def processes(self, *words: str) -> list[int]:
        """Live processes of this site whose command line has all the words."""
        mark, found = f"AIRFLOW_HOME={self.airflow.home}".encode(), []
        for folder in Path("/proc").iterdir():
            try:
                line = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
                if line and all(word.encode() in line for word in words):
                    found += [int(folder.name)] if mark in (folder / "environ").read_bytes().split(b"\0") else []
            except OSError:
                continue
        return found


@dataclass
class Run:
    site: Site
    run_id: str

    def wait(self) -> str:
        """Wait for its end; its state."""
        return self.site.airflow.wait_until_finished(DAG_ID, self.run_id, RUN_TIMEOUT_S)

    @property
    def state(self) -> str:
        return self.site.airflow.state(DAG_ID, self.run_id)

    def task(self, task_id: str, map_index: int = -1) -> dict[str, Any]:
        tasks = self.site.airflow.tasks(DAG_ID, self.run_id)
        return next(t for t in tasks if (t["task_id"], t["map_index"]) == (task_id, map_index))

    def xcom(self, task_id: str, map_index: int = -1, key: str = "return_value") -> Any:
        path = f"{self.site.airflow.run_path(DAG_ID, self.run_id)}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.site.airflow.request("GET", f"{path}?map_index={map_index}")["value"]

    def log(self, task_id: str, map_index: int = -1) -> str:
        """What the attempts of a task wrote."""
        mapped = f"/map_index={map_index}" if map_index >= 0 else ""
        place = f"dag_id={DAG_ID}/run_id={self.run_id}/task_id={task_id}{mapped}"
        return "".join(path.read_text() for path in (self.site.airflow.home / "logs" / place).glob("*.log"))

    @property
    def report(self) -> dict[str, Any]:
        batch_id = self.xcom("plan", key="batch_id")
        report: dict[str, Any] = json.loads(self.site.store.get_document(f"batches/{batch_id}/report.json") or b"{}")
        return report

    def end(self) -> None:
        """Set it failed, as the page's button does."""
        self.site.airflow.request("PATCH", self.site.airflow.run_path(DAG_ID, self.run_id), {"state": "failed"})


def wait_until(condition: Callable[[], object], timeout_s: float) -> float:
    """Seconds until the condition held; fails the test when it does not within the time."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < timeout_s, "it never came true"
        time.sleep(0.2)
    return time.monotonic() - started


def parent(pid: int) -> int:
    """The parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_alive(pid: int) -> bool:
    """Whether a process runs, and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
