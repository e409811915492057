"""What the plan task says of an Airflow and a worker that lack something, before anything is planned."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from magi2.config.settings import Settings
from magi2.deployment import Deployment
from magi2.errors import ConfigError
from magi2_airflow import readiness

Answer = Callable[[int, str, bytes], None]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answer]:
    """An API server whose answer the test gives; every other address than ours is not there."""
    answers: list[tuple[int, str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, kind, body = answers[-1] if self.path == "/base/renders/ready" else (404, "text/plain", b"")
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = Thread(target=served.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{served.server_port}/base/execution/"
        monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", url)
        monkeypatch.setattr(readiness, "has_supervisor", lambda: True)
        yield lambda status, kind, body: answers.append((status, kind, body))
        served.shutdown()
        thread.join()


def ready(*, pools: list[str], queues: list[str]) -> tuple[int, str, bytes]:
    return 200, "application/json", json.dumps({"missing_pools": pools, "queues_without_worker": queues}).encode()


def test_nothing_is_said_when_nothing_is_missing(server: Answer, caplog: pytest.LogCaptureFixture) -> None:
    server(*ready(pools=[], queues=[]))
    readiness.require_airflow()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_missing_pools_end_the_run_by_name_and_say_what_to_do(server: Answer) -> None:
    server(*ready(pools=["magi2_gpu1", "magi2_gpu8"], queues=[]))
    with pytest.raises(ConfigError, match=r"no pool magi2_gpu1, magi2_gpu8.*magi2 airflow setup"):
        readiness.require_airflow()


def test_queue_without_a_worker_is_told(server: Answer, caplog: pytest.LogCaptureFixture) -> None:
    server(*ready(pools=[], queues=["magi2_gpu8"]))
    readiness.require_airflow()
    assert "no worker serves the queue magi2_gpu8" in caplog.text


@pytest.mark.parametrize("answer", [(404, "application/json", b"{}"), (200, "text/html", b"<html>")])
def test_server_without_the_plugin_is_told(
    server: Answer, answer: tuple[int, str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    server(*answer)
    readiness.require_airflow()
    assert "has not loaded the plugin magi2_renders" in caplog.text


def test_server_that_does_not_answer_stops_nothing(
    server: Answer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", "http://127.0.0.1:9/execution/")
    readiness.require_airflow()
    assert "nobody says whether Airflow has pools" in caplog.text


def test_catalog_out_of_reach_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "catalog.sqlite").mkdir()
    settings = Settings(store=str(tmp_path / "store"), catalog=f"sqlite:///{tmp_path}/catalog.sqlite")
    readiness.tell_of_catalog(Deployment(settings))
    assert "not reached from this worker" in caplog.text
