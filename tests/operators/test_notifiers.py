"""People are told of what needs them, once, with no secret in the log."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

import magi2.deployment
from magi2.catalog import Actor, NewBatch, PlannedClip, Run, RunState
from magi2.types import Clip, StageName
from magi2_airflow.notifiers import BatchFinished, FailureLimitPassed, Findings, Notice, tell
from magi2_airflow.plan import PlanOperator
from magi2_airflow.report import ReportOperator
from magi2_airflow.watch import find_low_disk, find_stalled
from tests.operators.operator_helpers import Deployment, Task

TOKEN, PATH = "s3cret-token", "/hooks/s3cret-path"


class Webhook:
    """A server that answers with `status` and keeps what it was sent."""

    def __init__(self) -> None:
        self.status = 200
        self.heard: list[tuple[str, str | None, dict[str, Any]]] = []
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                webhook.heard.append((self.path, self.headers["Authorization"], json.loads(body)))
                self.send_response(webhook.status)
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def webhook(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    hook = Webhook()
    thread = threading.Thread(target=hook.server.serve_forever, daemon=True)
    thread.start()
    host = f"http://127.0.0.1:{hook.server.server_port}{PATH}"
    monkeypatch.setenv("AIRFLOW_CONN_NIGHT_WATCH", json.dumps({"conn_type": "http", "host": host, "password": TOKEN}))
    monkeypatch.setenv("MAGI2_NOTIFY_CONN_ID", "night_watch")
    yield hook
    hook.server.shutdown()
    hook.server.server_close()


def send(notice: Notice) -> None:
    tell(notice, magi2.deployment.Deployment.from_environment())


def test_webhook_gets_each_notice_once_and_no_secret_is_logged(
    webhook: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    notice = Notice("stalled", "night", "batch night: no progress", {"since": "noon"})
    with caplog.at_level(logging.DEBUG):
        for _ in range(2):
            send(notice)
    content = {"kind": "stalled", "subject": "night", "text": "batch night: no progress", "details": {"since": "noon"}}
    assert webhook.heard == [(PATH, f"Bearer {TOKEN}", content)]
    assert "notice stalled: batch night: no progress" in caplog.text
    assert "s3cret" not in caplog.text


def test_notice_that_the_webhook_refused_is_told_again(webhook: Webhook, caplog: pytest.LogCaptureFixture) -> None:
    webhook.status = 503
    notice = Notice("disk_low", "/data", "little is free")
    send(notice)
    assert "connection night_watch did not take notice disk_low: status 503" in caplog.text
    webhook.status = 204
    send(notice)
    send(notice)
    assert len(webhook.heard) == 2


def test_webhook_that_is_away_stops_nothing(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for host in (f"http://127.0.0.1:1{PATH}", "no address"):
        monkeypatch.setenv("MAGI2_NOTIFY_CONN_ID", "night_watch")
        monkeypatch.setenv("AIRFLOW_CONN_NIGHT_WATCH", json.dumps({"conn_type": "http", "host": host}))
        send(Notice("stalled", host, "no progress"))
    assert caplog.text.count("connection night_watch did not take notice stalled") == 2


def test_notices_are_told_to_the_log_where_no_webhook_is_named(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    send(Notice("stalled", "night", "batch night: no progress"))
    assert "notice stalled: batch night: no progress" in caplog.text


@pytest.fixture
def batch_id(deployment: Deployment) -> str:
    task = Task(task_id="plan")
    path = deployment.batch({"prompt": "a kite", "seed": 1}, {"prompt": "a boat", "seed": 2})
    PlanOperator(task_id="plan", batch=str(path), profile="tiny", failure_limit=1).work(task.context())
    return str(task.xcom["batch_id"])


def context(task: Task, operator: object, **values: Any) -> Any:
    task.task = operator  # type: ignore[attr-defined]
    return {**task.context(), **values}


def test_end_of_a_batch_is_told_with_its_counts(deployment: Deployment, batch_id: str, task: Task) -> None:
    deployment.deliver(batch_id)
    operator = ReportOperator(task_id="report", batch_id=batch_id)
    operator.work(task.context())
    (notice,) = BatchFinished().notices(context(task, operator))
    assert (notice.kind, notice.text) == ("batch_finished", f"batch night ({batch_id}) has ended: 2 done")
    assert (notice.details["clips_done"], notice.details["failure_limit"]) == (2, 1)


def test_end_of_a_batch_with_too_many_failures_is_told_as_both(
    deployment: Deployment, batch_id: str, task: Task
) -> None:
    operator = ReportOperator(task_id="report", batch_id=batch_id)
    with pytest.raises(Exception, match="2 clips failed"):
        operator.work(task.context())
    finished, limit = BatchFinished().notices(context(task, operator))
    assert "2 failed" in finished.text
    assert (limit.kind, limit.subject) == ("failure_limit", batch_id)


def test_run_without_a_batch_is_told(deployment: Deployment, task: Task) -> None:
    operator = ReportOperator(task_id="report", batch_id="")
    (notice,) = BatchFinished().notices(context(task, operator))
    assert "ended before its batch was planned" in notice.text


def failed(clip_id: str, **values: Any) -> Run:
    return Run(clip_id=clip_id, stage=StageName.PREVIEW, state=RunState.FAILED, error="bad", **values)


def test_failure_limit_counts_clips_that_failed_for_good(deployment: Deployment, task: Task) -> None:
    catalog = deployment.catalog()
    clips = [Clip(f"prompt {number}", number, "tiny", "a" * 64) for number in range(4)]
    catalog.batches.create(
        NewBatch(batch_id="night", name="n", source="s", clips_total=4, failure_limit=1), {"a" * 64: {}}
    )
    catalog.batches.refuse_rows("night", {7: "the prompt is empty"})
    catalog.clips.add("night", [PlannedClip(clip, number // 2) for number, clip in enumerate(clips)])
    one, _, three, four = (clip.clip_id for clip in clips)

    def notices(shard: int, **values: Any) -> list[Notice]:
        operator = SimpleNamespace(batch_id="night", shard=shard)
        return list(FailureLimitPassed().notices(context(task, operator, **values)))

    catalog.runs.finish("night", [failed(three), failed(four)])  # their shard may be tried again
    assert notices(0) == []
    (lost,) = notices(1, exception=RuntimeError("for good"))
    assert lost.details == {"clips_failed": 3, "failure_limit": 1}
    catalog.runs.finish("night", [failed(one, seconds=1.0)])
    (notice,) = notices(0)
    assert (notice.subject, notice.details["clips_failed"]) == ("night", 2)


def test_batch_that_stands_still_is_found_until_it_moves(deployment: Deployment, batch_id: str) -> None:
    assert find_stalled(60) == []
    (found,) = find_stalled(0)
    assert (found["kind"], found["subject"]) == ("stalled", batch_id)
    catalog = deployment.catalog()
    assert catalog.notices.is_first("stalled", batch_id)
    find_stalled(60)
    assert catalog.notices.is_first("stalled", batch_id)


def test_disk_with_little_space_is_found_until_it_has_more(deployment: Deployment) -> None:
    (found,) = find_low_disk(100)
    assert found["subject"] == str(deployment.store.root)
    catalog = deployment.catalog()
    assert catalog.notices.is_first("disk_low", found["subject"])
    assert find_low_disk(0) == []
    assert catalog.notices.is_first("disk_low", found["subject"])


def test_what_a_task_found_is_told(deployment: Deployment, task: Task) -> None:
    task.xcom_pull = lambda task_ids: [{"kind": "disk_low", "subject": "/data", "text": "little is free"}]  # type: ignore[attr-defined]
    assert list(Findings().notices(context(task, None))) == [Notice("disk_low", "/data", "little is free")]


def test_equal_failures_that_paused_a_batch_are_told_each_time(deployment: Deployment, task: Task) -> None:
    catalog = deployment.catalog()
    clips = [Clip(f"prompt {number}", number, "tiny", "a" * 64) for number in range(4)]
    batch = NewBatch(batch_id="night", name="n", source="s", clips_total=4, failure_limit=9, failure_streak=2)
    catalog.batches.create(batch, {"a" * 64: {}})
    catalog.clips.add("night", [PlannedClip(clip, 0) for clip in clips])
    operator = SimpleNamespace(batch_id="night", shard=0)

    def notices() -> list[Notice]:
        return list(FailureLimitPassed().notices(context(task, operator)))

    subjects = set()
    for pair in (clips[:2], clips[2:]):
        at = datetime.now(UTC)
        runs = [failed(clip.clip_id, error_code="contract", seconds=1.0, finished_at=at) for clip in pair]
        catalog.runs.finish("night", runs)
        catalog.control.pause_at_streak("night", StageName.PREVIEW)
        (notice,) = notices()
        assert (notice.kind, notice.details["streak"]) == ("failure_streak", 2)
        assert "2 clips in a row failed in preview, contract: bad; look at it and resume it" in notice.text
        subjects.add(notice.subject)
        catalog.control.resume("night", by=Actor("1", "ann"))
        assert notices() == []
    assert len(subjects) == 2
