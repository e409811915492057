"""`magi2 accept` as a command: what it refuses, what it says of an Airflow, and a rehearsal there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from magi2.acceptance.plan import Difference, Figure, NotRunError
from magi2.cli import accept_airflow
from magi2.config.settings import Settings
from tests.cli.canned_airflow import TOKEN, answering, http
from tests.cli.cli_said import Magi2

DEMO = Path(__file__).parents[2] / "examples" / "demo_checkpoint"
AT_WORK = (http(TOKEN), http(b'{"is_paused": false}'), http(TOKEN), http(b'{"dag_run_id": "manual__1"}'))


def verdicts(out: Path) -> dict[str, str]:
    return {step["step"]: step["verdict"] for step in json.loads((out / "report.json").read_text())["steps"]}


def test_without_an_airflow_its_steps_are_not_run_and_the_report_says_why(magi2: Magi2, tmp_path: Path) -> None:
    said = magi2("accept", "--steps", "airflow,rehearse", "--out", tmp_path / "out")
    assert said.code == 0 and "2 not run" in said.out
    assert verdicts(tmp_path / "out") == {"airflow": "not run", "rehearse": "not run"}
    assert "MAGI2_AIRFLOW_URL is not set" in (tmp_path / "out" / "report.md").read_text()


def test_an_airflow_that_is_away_is_a_failure_without_its_address_in_the_report(
    magi2: Magi2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGI2_AIRFLOW_URL", "http://ann:hunter2@127.0.0.1:1")
    said = magi2("accept", "--steps", "airflow", "--out", tmp_path / "out")
    assert said.code == 1 and "magi2 airflow setup" in said.out
    report = (tmp_path / "out" / "report.json").read_text()
    assert verdicts(tmp_path / "out") == {"airflow": "failed"} and "127.0.0.1" not in report and "ann" not in report


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--steps", "kernel"), "unknown step 'kernel'"),
        (("--profile", "tiny", "--profile", "1080p"), "made for different weights"),
        (("--profile", "nowhere"), "unknown profile"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_before_anything_runs(
    arguments: tuple[str, ...], reason: str, magi2: Magi2, tmp_path: Path
) -> None:
    said = magi2("accept", "--out", tmp_path / "out", *arguments)
    assert said.code == 2 and reason in said.err


def rehearsal(answers: Sequence[bytes], monkeypatch: pytest.MonkeyPatch) -> list[Figure | Difference]:
    monkeypatch.setattr(accept_airflow, "_TICK_S", 0.0)
    with answering(answers) as url:
        return list(accept_airflow.rehearse(Settings(ckpt_root=DEMO, airflow_url=url)))


def test_a_rehearsal_waits_for_the_end_of_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = rehearsal([*AT_WORK, http(b'{"state": "running"}'), http(b'{"state": "success"}')], monkeypatch)
    assert [each.name for each in found] == ["profile", "clips", "batch"]
    assert found[0].value == "demo"


def test_a_rehearsal_that_fails_names_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [{"task_id": "plan", "state": "failed"}, {"task_id": "report", "state": "success"}]
    ends = http(b'{"state": "failed"}'), http(json.dumps({"task_instances": tasks}).encode())
    assert rehearsal([*AT_WORK, *ends], monkeypatch)[-1] == Difference("the run failed: plan failed")


def test_a_rehearsal_that_is_not_awaited_ends_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept_airflow, "REHEARSAL_S", 0.0)
    last = rehearsal([*AT_WORK, http(b"{}"), http(b'{"task_instances": []}')], monkeypatch)[-1]
    assert last == Difference("the run was queued after 0 s, and was ended: see its log")


@pytest.mark.parametrize(("answer", "state"), [(b'{"is_paused": true}', "paused"), (None, "not there")])
def test_a_rehearsal_starts_nothing_that_would_wait_for_ever(
    answer: bytes | None, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = http(answer) if answer else http(b"{}", "404 Not Found")
    with pytest.raises(NotRunError, match=f"is {state}"):
        rehearsal([http(TOKEN), dag], monkeypatch)


def test_published_weights_are_not_rehearsed_with(tmp_path: Path) -> None:
    settings = Settings(ckpt_root=tmp_path, airflow_url="http://127.0.0.1:1")
    with pytest.raises(NotRunError, match="examples/demo_checkpoint"):
        list(accept_airflow.rehearse(settings))
