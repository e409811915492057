"""Batches steered from the shell: on the catalog where there is no Airflow, else by the page's routes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from magi2.catalog import BatchState, Catalog, NewBatch
from magi2.config.settings import Settings
from magi2.deployment import Deployment
from tests.cli.cli_said import Magi2, called_here

NIGHT, DAY = "aa11" * 4, "bb22" * 4


@pytest.fixture
def magi2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Magi2:
    run = called_here(monkeypatch, capsys)
    monkeypatch.setenv("MAGI2_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    return run


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    deployment = Deployment(Settings(store=str(tmp_path / "store")))
    deployment.require_match()
    catalog = deployment.catalog
    for batch_id, name, run_id in ((NIGHT, "night", None), (DAY, "day", "manual__1")):
        batch = NewBatch(batch_id=batch_id, name=name, source="s", clips_total=0, run_id=run_id, failure_limit=1)
        catalog.batches.create(batch, {})
        catalog.batches.mark(batch_id, BatchState.RUNNING)
    return catalog


def test_batches_of_commands_are_steered_without_airflow(magi2: Magi2, catalog: Catalog) -> None:
    told = [
        json.loads(magi2("batch", *arguments, "--json").out)
        for arguments in (("pause", "night"), ("resume", NIGHT), ("priority", NIGHT[:6], 7), ("limit", "night", 3))
    ]
    assert [(each["action"], each["requested"], each["priority"], each["failure_limit"]) for each in told] == [
        ("pause", "pause", 0, 1),
        ("resume", None, 0, 1),
        ("priority", None, 7, 1),
        ("limit", None, 7, 3),
    ]
    assert told[0]["paused_because"].startswith("paused by ")
    said = magi2("batch", "cancel", "night")
    assert (said.code, "night: cancelled" in said.out, "0 failed of at most 3" in said.out) == (0, True, True)


REFUSED: dict[tuple[str, ...], tuple[int, str]] = {
    ("pause", "nihgt"): (2, "there is no batch 'nihgt' (did you mean 'night'?)"),
    ("pause", "day"): (2, "is rendered by Airflow, which decides who may pause it (set MAGI2_AIRFLOW_URL"),
    ("delete", "night"): (3, "is running: cancel it before it is deleted"),
    ("budget", "night", "much"): (2, "the budget is 'much' (give an amount, or none)"),
    ("budget", "night", "5"): (2, "a budget needs a price"),
    ("submit", "a.jsonl"): (2, "MAGI2_AIRFLOW_URL is not set"),
    ("submit",): (2, "give either a file that Airflow can read, or --rows FILE"),
    ("submit", "--rows", "absent.csv"): (2, "absent.csv: No such file"),
}


def test_what_cannot_be_done_is_one_line_that_says_why(magi2: Magi2, catalog: Catalog) -> None:
    for arguments, (code, error) in REFUSED.items():
        said = magi2("batch", *arguments)
        assert (said.code, len(said.error_lines), said.out) == (code, 1, ""), arguments
        assert error in said.err, arguments


def test_a_finished_batch_comes_too_late_and_is_deleted_only_by_yes(magi2: Magi2, catalog: Catalog) -> None:
    catalog.batches.mark(NIGHT, BatchState.FAILED)
    assert "too late to pause" in magi2("batch", "pause", "night").err
    said = magi2("batch", "delete", "night")
    assert "would remove" in said.out and "--yes" in said.out
    assert catalog.batches.get(NIGHT) is not None
    told = json.loads(magi2("batch", "delete", "night", "--yes", "--json").out)
    assert (told["batch_id"], told["dry_run"], told["artifacts"]) == (NIGHT, False, {})
    assert catalog.batches.get(NIGHT) is None


class FakeAirflow:
    """Writes down what it is asked with a token, and knows one batch."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.status = 200
        self.batch = {"batch_id": NIGHT, "name": "night", "is_paused": True, "is_cancel_requested": False}

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if path.startswith("/auth"):
            return 201, {"access_token": "abc"}
        self.asked.append((method, path, body))
        if path.startswith("/renders/api/batches?"):
            return 200, {"batches": [self.batch]}
        if self.status != 200:
            return self.status, {"detail": "you may not change the runs"}
        return 200, {"dag_run_id": "manual__1", "batch": self.batch}


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAirflow]:
    fake = FakeAirflow()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"null")
            status, content = fake.answer(self.command, self.path, body)
            sent = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *arguments: object) -> None:
            """Nothing is said."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("MAGI2_AIRFLOW_URL", f"http://127.0.0.1:{server.server_port}")
        yield fake
        server.shutdown()


def test_with_airflow_the_routes_of_the_page_do_it(magi2: Magi2, airflow: FakeAirflow) -> None:
    told = json.loads(magi2("batch", "pause", "night", "--json").out)
    assert (told["batch_id"], told["requested"]) == (NIGHT, "pause")
    magi2("batch", "budget", NIGHT, "none")
    assert [each for each in airflow.asked if each[0] == "POST"] == [
        ("POST", f"/renders/api/batches/{NIGHT}/pause", {}),
        ("POST", f"/renders/api/batches/{NIGHT}/budget", {"budget": None}),
    ]
    airflow.status = 403
    said = magi2("batch", "cancel", "night")
    assert (said.code, "you may not change the runs" in said.err) == (2, True)


def test_submit_gives_what_was_asked_and_the_rows_of_a_local_file(
    magi2: Magi2, airflow: FakeAirflow, tmp_path: Path
) -> None:
    rows = tmp_path / "night.jsonl"
    rows.write_text('{"prompt": "a kite"}\n')
    said = magi2("batch", "submit", "--rows", rows, "--failure-limit", 3, "--set", "preview.steps=2", "--json")
    assert json.loads(said.out) == {"dag_id": "magi2_render_batch", "run_id": "manual__1"}
    magi2("batch", "submit", "s3://studio/prompts/day.csv", "--on-limit", "continue", "--name", "day")
    assert [body["conf"] for _, _, body in airflow.asked] == [
        {"rows": rows.read_text(), "name": "night", "failure_limit": 3, "overrides": ["preview.steps=2"]},
        {"batch": "s3://studio/prompts/day.csv", "on_limit": "continue", "name": "day"},
    ]


def test_rows_that_are_too_many_to_send_are_refused_here(magi2: Magi2, airflow: FakeAirflow, tmp_path: Path) -> None:
    rows = tmp_path / "night.csv"
    rows.write_text("prompt\n" + "a kite\n" * 200_000)
    said = magi2("batch", "submit", "--rows", rows)
    assert (said.code, "--rows sends 1,048,576 at most" in said.err, airflow.asked) == (2, True, [])
