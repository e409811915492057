"""Airflow on this machine, as far as it can be seen without starting it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from tools.demo import DAG_ID
from tools.local_airflow import COMPONENTS, TRIGGERER, LocalAirflow

LEFT = [
    {"dag_id": DAG_ID, "dag_run_id": "manual__1", "conf": {"batch": "/examples/shapes.jsonl"}},
    {"dag_id": DAG_ID, "dag_run_id": "manual__2", "conf": {"batch": "/of/somebody.jsonl"}},
    {"dag_id": "magi2_inbox", "dag_run_id": "scheduled__1", "conf": None},
]


@contextmanager
def api(port: int, said: list[str]) -> Iterator[None]:
    """A server with runs that were left; `said` gets what it is asked to change and what is started meanwhile."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({"dag_runs": LEFT} if "dagRuns?state=queued&state=running" in self.path else {})

        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            said.append(f"{self.path.rpartition('/')[2]} {body['state']}")
            self._answer({})

        def _answer(self, content: Mapping[str, Any]) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, format: str, *arguments: object) -> None: ...

    with HTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


class Unstarted(LocalAirflow):
    """Notes its components in place of starting them."""

    said: list[str]

    def prepare(self) -> None: ...

    def start(self, component: str) -> None:
        self.said.append(component)

    def wait_until_healthy(self, parts: Sequence[str] = (), timeout_s: float = 0.0) -> None: ...


def test_runs_that_were_left_are_failed_before_a_scheduler_goes_on_with_them(tmp_path: Path) -> None:
    ours = "/examples/shapes.jsonl"
    airflow = Unstarted(tmp_path, environment={}, left_runs=lambda run: (run["conf"] or {}).get("batch") == ours)
    airflow.said = []
    with api(airflow.port, airflow.said), airflow:
        assert [entry for entry in airflow.said if entry not in COMPONENTS] == ["manual__1 failed"]
        assert airflow.said.index("manual__1 failed") < airflow.said.index("scheduler")


def test_runs_go_on_where_nobody_asked_for_their_end(tmp_path: Path) -> None:
    airflow = Unstarted(tmp_path, environment={})
    airflow.said = []
    with api(airflow.port, airflow.said), airflow:
        assert airflow.said == list(COMPONENTS)


def test_settings_of_a_home_hold_no_path_and_keep_their_key_when_it_is_moved(tmp_path: Path) -> None:
    template, home = tmp_path / "airflow.db", tmp_path / "moved"
    template.touch()
    home.mkdir()
    (home / "airflow.cfg").write_text(
        "[core]\nfernet_key = abc%=\n[logging]\nbase_log_folder = /where/it/was/airflow/logs\n"
    )
    LocalAirflow(home, environment={}, template=template).prepare()
    settings = home / "airflow.cfg"
    assert "/" not in settings.read_text() and "fernet_key = abc%=" in settings.read_text()
    fresh = tmp_path / "fresh"
    LocalAirflow(fresh, environment={}, template=template).prepare()
    assert (fresh / "airflow.cfg").stat().st_mode & 0o077 == 0
    assert len((fresh / "airflow.cfg").read_text().rpartition("fernet_key = ")[2].strip()) == 44


def test_triggerer_is_started_where_somebody_looks(tmp_path: Path) -> None:
    airflow = Unstarted(tmp_path, environment={}, components=(*COMPONENTS, TRIGGERER))
    airflow.said = []
    with api(airflow.port, airflow.said), airflow:
        assert airflow.said[-1] == TRIGGERER
