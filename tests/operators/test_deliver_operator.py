"""The task that brings clips to their targets, and what the plan task refuses before anything is rendered."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException, DownstreamTasksSkipped

from magi2.artifacts.manifest import ManifestDraft
from magi2.batches.documents import load_batch
from magi2.batches.plan import load_shard
from magi2.batches.results import write_results
from magi2.checkpoints.layout import CheckpointFolder
from magi2.config.settings import Settings
from magi2.errors import CancelledError, ConfigError, InputError
from magi2.prompts.caption import Caption
from magi2.recipes.captions import CAPTION
from magi2.recipes.load import recipe_book
from magi2.recipes.result import StageResult
from magi2.types import CLIP, CONTACT_SHEET, POSTER, StageName
from magi2_airflow.connections import target_secret
from magi2_airflow.plan import PlanOperator
from magi2_airflow.stages import DeliverOperator, MuxOperator
from tests.operators.operator_helpers import Deployment, Task

KITE = {"prompt": "a kite", "seed": 1, "name": "kite"}
SECRET = "s3cr3t-of-the-client"
BUCKET = {"url": "s3://clips/?endpoint=http://127.0.0.1:9", "connection": "aws_client"}


@pytest.fixture
def studio(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = deployment.folder / "studio"
    folder.mkdir()
    targets = {"studio": str(folder), "client": BUCKET}
    monkeypatch.setenv("MAGI2_DELIVERY_TARGETS", json.dumps(targets))
    return folder


def planned(deployment: Deployment, *rows: dict[str, Any], **arguments: Any) -> str:
    task = Task(task_id="plan")
    path = deployment.batch(*rows)
    PlanOperator(task_id="plan", batch=str(path), profile="tiny-preview", **arguments).work(task.context())
    return str(task.xcom["batch_id"])


def render(deployment: Deployment, batch_id: str) -> None:
    """Leave what the stages up to mux leave of the batch's first shard."""
    settings = Settings.from_environment()
    shard = load_shard(deployment.store, batch_id, 0, None)
    book = recipe_book(shard.profile, settings, CheckpointFolder(settings.checkpoint_root()))
    results = []
    for clip in shard.clips:
        caption = Caption(clip.prompt, mode_requested="off", mode_used="off").to_json()
        contents = {CLIP: b"clip", POSTER: b"poster", CONTACT_SHEET: b"sheet", "probe.json": b"{}"}
        chain = book.chain(clip, clip.prompt)
        for recipe, files in ((book.enhance(clip), {CAPTION: caption}), (chain[StageName.MUX], contents)):
            for name, content in files.items():
                (deployment.folder / name).write_bytes(content)
            deployment.store.publish(ManifestDraft(recipe), {name: deployment.folder / name for name in files})
        results.append(StageResult(StageName.MUX, clip, "made", 1.0, chain[StageName.MUX].key))
    write_results(deployment.store, batch_id, 0, StageName.MUX, 1, results)


def test_task_delivers_without_a_process_and_tells_counts_alone(
    deployment: Deployment, studio: Path, task: Task
) -> None:
    batch_id = planned(deployment, KITE, delivery_target="studio", delivery_name="{name}.mp4")
    render(deployment, batch_id)
    operator = DeliverOperator(task_id="deliver", batch_id=batch_id, shard=0)
    counts = {"made": 1, "reused": 0, "failed": 0}
    assert operator.work(task.context()) == {"batch_id": batch_id, "shard": 0, "stage": "deliver", **counts}
    assert sorted(path.name for path in studio.iterdir()) == [
        *("kite.contact_sheet.jpg", "kite.jpg", "kite.json", "kite.mp4")
    ]
    assert "127.0.0.1" not in json.dumps(task.xcom)


def wired_mux(batch_id: str) -> MuxOperator:
    with DAG("wired"):
        mux = MuxOperator(task_id="mux", batch_id=batch_id, shard=0)
        mux >> DeliverOperator(task_id="deliver", batch_id=batch_id, shard=0)
    return mux


def test_no_task_of_deliver_starts_for_clips_without_a_target(deployment: Deployment, task: Task) -> None:
    batch_id = planned(deployment, KITE)
    deployment.deliver(batch_id)
    with pytest.raises(DownstreamTasksSkipped) as skipped:
        wired_mux(batch_id).work(task.context())
    assert skipped.value.tasks == [("deliver", task.map_index)]
    counts = {"made": 0, "reused": 1, "failed": 0}
    assert task.xcom["return_value"] == {"batch_id": batch_id, "shard": 0, "stage": "mux", **counts}


def test_the_task_of_deliver_follows_where_a_clip_has_a_target(
    deployment: Deployment, studio: Path, task: Task
) -> None:
    batch_id = planned(deployment, KITE, delivery_target="studio")
    deployment.deliver(batch_id)
    assert wired_mux(batch_id).work(task.context())["reused"] == 1


def test_task_that_is_killed_begins_no_further_clip(deployment: Deployment, studio: Path, task: Task) -> None:
    batch_id = planned(deployment, KITE, delivery_target="studio")
    render(deployment, batch_id)
    operator = DeliverOperator(task_id="deliver", batch_id=batch_id, shard=0)
    operator.on_kill()
    with pytest.raises(CancelledError):
        operator.work(task.context())
    assert list(studio.iterdir()) == []


@pytest.mark.parametrize(
    "row",
    [
        {"delivery_target": "studios"},
        {"delivery_target": "/etc"},
        {"delivery_target": "s3://other/"},
        {"delivery_target": "--out"},
        {"delivery_target": "studio", "delivery_name": "/etc/{name}.mp4"},
        {"delivery_target": "studio", "delivery_name": "../{name}.mp4"},
        {"delivery_target": "studio", "delivery_name": "{name.__class__}.mp4"},
        {"delivery_name": "{name}.mp4"},
    ],
)
def test_plan_refuses_a_row_with_a_target_or_name_that_is_none(
    deployment: Deployment, studio: Path, row: dict[str, str]
) -> None:
    with pytest.raises(InputError, match="line 1: delivery"):
        planned(deployment, {**KITE, **row})
    assert not list(deployment.store.list_documents("batches"))


@pytest.mark.parametrize(
    "arguments",
    [
        {"delivery_target": "studios"},
        {"delivery_target": "studio", "delivery_name": "{prompt}.mp4"},
        {"overrides": ["delivery.target=studios"]},
        {"overrides": ["delivery.target=/etc"]},
    ],
)
def test_plan_refuses_a_batch_with_a_target_or_name_that_is_none(
    deployment: Deployment, studio: Path, arguments: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match="delivery"):
        planned(deployment, KITE, **arguments)


def test_row_wins_over_batch_and_batch_over_profile(deployment: Deployment, studio: Path) -> None:
    rows = [{**KITE, "delivery_name": "mine.mp4"}, {**KITE, "seed": 2}]
    batch_id = planned(
        deployment,
        *rows,
        delivery_target="studio",
        delivery_name="batch/{seed}.mp4",
        overrides=["delivery.target=other", "delivery.name='{clip}.mp4'"],
    )
    clips = load_shard(deployment.store, batch_id, 0, None).clips
    names = {clip.seed: [(each.target, each.name) for each in clip.deliveries] for clip in clips}
    assert names == {1: [("studio", "mine.mp4")], 2: [("studio", "batch/2.mp4")]}


def test_batch_run_again_goes_where_it_went_unless_told_otherwise(deployment: Deployment, studio: Path) -> None:
    batch_id = planned(deployment, KITE, delivery_target="studio", delivery_name="first/{name}.mp4")

    def again(**arguments: Any) -> list[str]:
        task = Task(task_id="plan")
        PlanOperator(task_id="plan", rerun_of=batch_id, **arguments).work(task.context())
        assert load_batch(deployment.store, task.xcom["batch_id"]).parent_batch_id == batch_id
        (clip,) = load_shard(deployment.store, task.xcom["batch_id"], 0, None).clips
        return [each.name for each in clip.deliveries]

    assert again() == ["first/kite.mp4"]
    assert again(delivery_target="studio", delivery_name="second/{name}.mp4") == ["second/kite.mp4"]


def connection(**values: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"login": "id", "password": SECRET, "extra_dejson": {}, **values})


def test_connection_gives_keys_and_place(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"endpoint_url": "http://host:9000", "region_name": "eu-1", "aws_session_token": "token"}
    monkeypatch.setattr(BaseHook, "get_connection", lambda conn_id: connection(extra_dejson=extra))
    secret = target_secret("aws_client")
    assert (secret.access_key, secret.secret_key, secret.session_token) == ("id", SECRET, "token")
    assert (secret.endpoint, secret.region) == ("http://host:9000", "eu-1")


def test_plan_refuses_a_target_whose_connection_is_not_there(
    deployment: Deployment, studio: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(conn_id: str) -> None:
        raise AirflowNotFoundException(f"The conn_id `{conn_id}` isn't defined")

    monkeypatch.setattr(BaseHook, "get_connection", absent)
    with pytest.raises(ConfigError, match="connection aws_client"):
        planned(deployment, KITE, delivery_target="client")
    assert not list(deployment.store.list_documents("batches"))


def test_no_document_log_or_environment_holds_the_secret_of_a_connection(
    deployment: Deployment,
    studio: Path,
    task: Task,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(BaseHook, "get_connection", lambda conn_id: connection())
    batch_id = planned(deployment, KITE, delivery_target="client")
    documents = [deployment.store.get_document(name) or b"" for name in deployment.store.list_documents("batches")]
    assert documents and not any(SECRET.encode() in content for content in documents)
    assert SECRET not in caplog.text and SECRET not in json.dumps(task.xcom)
    assert load_shard(deployment.store, batch_id, 0, None).clips[0].deliveries[0].target == "client"
