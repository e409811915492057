"""The plan task: what it hands on, what it writes down, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from magi2.catalog import BatchState
from magi2.errors import CheckpointError, ConfigError, InputError, MissingToolError
from magi2_airflow.form import default_profile
from magi2_airflow.plan import PlanOperator
from tests.batch_counts import counts_of, state_of
from tests.operators.operator_helpers import Deployment, Task

REPOSITORY = Path(__file__).parents[2]
KITE, BOAT = {"prompt": "a kite", "seed": 1}, {"prompt": "a boat", "seed": 2, "profile": "tiny-preview"}


def plan(task: Task, **arguments: Any) -> list[int]:
    return PlanOperator(task_id="plan", **{"profile": "tiny", **arguments}).work(task.context())


def test_shards_are_numbered_and_the_batch_id_is_an_xcom_of_its_own(deployment: Deployment, task: Task) -> None:
    shards = plan(task, batch=str(deployment.batch(KITE, BOAT)))
    assert shards == [0, 1]
    batch = deployment.document(f"batches/{task.xcom['batch_id']}/batch.json")
    assert (batch["name"], batch["dag_id"], batch["run_id"]) == ("night", task.dag_id, task.run_id)
    assert batch["requested_by"] == "ann"
    assert set(task.xcom) == {"batch_id"}


def test_plan_is_in_the_catalog(deployment: Deployment, task: Task) -> None:
    plan(task, batch=str(deployment.batch(KITE, BOAT, "{")), on_bad_rows="skip")
    catalog = deployment.catalog()
    assert state_of(catalog, task.xcom["batch_id"]) is BatchState.RUNNING
    assert counts_of(catalog, task.xcom["batch_id"]).clips.waiting == 2
    assert list(catalog.batches.refused_rows(task.xcom["batch_id"])) == [3]


def test_same_run_plans_the_same_batch_again(deployment: Deployment, task: Task) -> None:
    path = deployment.batch(KITE)
    plan(task, batch=str(path))
    first = task.xcom["batch_id"]
    plan(task, batch=str(path))
    assert task.xcom["batch_id"] == first


def test_bad_rows_are_all_listed_and_refused_by_default(deployment: Deployment, task: Task) -> None:
    path = deployment.batch(KITE, {"prompt": ""}, {"prompt": "x", "seed": -1})
    with pytest.raises(InputError, match=r"2 bad rows") as caught:
        plan(task, batch=str(path))
    assert "line 2" in str(caught.value)
    assert "line 3" in str(caught.value)
    assert not list(deployment.store.list_documents("batches"))


def test_refused_batch_is_in_the_catalog_with_the_reason_of_each_row(deployment: Deployment, task: Task) -> None:
    """Before, only the log of a task told of it."""
    path = deployment.batch(KITE, {"prompt": ""}, {"prompt": "x", "seed": -1})
    for _ in range(2):  # as often as the task is cleared
        with pytest.raises(InputError):
            plan(task, batch=str(path))
    (batch,) = deployment.catalog().batches.search().rows
    assert (batch.name, batch.state, batch.clips_total) == ("night", BatchState.FAILED, 0)
    assert (batch.dag_id, batch.run_id, batch.requested_by) == (task.dag_id, task.run_id, "ann")
    reasons = deployment.catalog().batches.refused_rows(batch.batch_id)
    assert list(reasons) == [2, 3] and "seed is -1" in reasons[3]


def test_file_that_is_refused_as_a_whole_is_in_the_catalog(deployment: Deployment, task: Task) -> None:
    with pytest.raises(InputError):
        plan(task, batch=str(deployment.batch("[1", name="night.json")))
    (batch,) = deployment.catalog().batches.search().rows
    (reason,) = deployment.catalog().batches.refused_rows(batch.batch_id).items()
    assert reason[0] == 0 and "unreadable" in reason[1]


def test_file_address_is_understood_and_another_is_refused(deployment: Deployment, task: Task) -> None:
    path = deployment.batch(KITE, name="my night.jsonl")
    assert plan(task, batch=path.as_uri()) == [0]
    for elsewhere in ("s3://bucket/night.jsonl", "http://bucket/night.jsonl"):
        with pytest.raises(InputError, match="not a file of this host"):
            plan(task, batch=elsewhere)


@pytest.mark.parametrize("rows", [[KITE, {"prompt": "a boat"}], "prompt,seed\na kite,1\na boat,2"])
def test_rows_of_the_request_are_a_batch_that_needs_no_file_to_be_run_again(
    rows: Any, deployment: Deployment, task: Task
) -> None:
    assert plan(task, rows=rows, name="evening") == [0]
    first = task.xcom["batch_id"]
    plan(task, batch=None, rerun_of=first)
    batches = [deployment.document(f"batches/{each}/batch.json") for each in (first, task.xcom["batch_id"])]
    assert [(batch["name"], batch["clips"]) for batch in batches] == [("evening", 2)] * 2


def test_refused_rows_of_the_request_are_in_the_catalog_under_their_name(deployment: Deployment, task: Task) -> None:
    with pytest.raises(InputError, match="line 2"):
        plan(task, rows="prompt,seed\na kite,many", name="evening")
    (batch,) = deployment.catalog().batches.search().rows
    assert batch.name == "evening" and list(deployment.catalog().batches.refused_rows(batch.batch_id)) == [2]


@pytest.mark.parametrize("rows", ["", []])
def test_rows_and_a_file_exclude_each_other(rows: Any, deployment: Deployment, task: Task) -> None:
    path = str(deployment.batch(KITE))
    for given in ({"batch": path, "rows": [KITE]}, {"rows": [KITE], "rerun_of": "0" * 16}, {"rows": rows}):
        with pytest.raises(InputError, match="give either a batch file, or rows"):
            plan(task, **given)


def test_overrides_change_every_profile(deployment: Deployment, task: Task) -> None:
    plan(task, batch=str(deployment.batch(KITE, BOAT)), overrides=["preview.steps=2"])
    batch = deployment.document(f"batches/{task.xcom['batch_id']}/batch.json")
    assert {profile["preview"]["steps"] for profile in batch["profiles"].values()} == {2}


def test_override_leaves_rows_alone_whose_profile_has_no_such_section(deployment: Deployment, task: Task) -> None:
    rows = [{**KITE, "profile": "tiny"}, {**BOAT, "profile": "tiny-preview"}]
    plan(task, batch=str(deployment.batch(*rows)), overrides=["refiner.steps=1"])
    batch = deployment.document(f"batches/{task.xcom['batch_id']}/batch.json")
    assert batch["refused"] == []
    refiners = [profile["refiner"] for profile in batch["profiles"].values()]
    assert {refiner and refiner["steps"] for refiner in refiners} == {1, None}
    with pytest.raises(ConfigError, match="switched off in every profile used: tiny-preview"):
        plan(task, batch=str(deployment.batch(rows[1])), overrides=["refiner.steps=1"])


@pytest.mark.parametrize(
    "arguments", [{"profile": "tyni"}, {"overrides": ["preview.stepz=2"]}, {"overrides": ["nonsense"]}]
)
def test_wrong_default_or_override_is_not_blamed_on_a_row(
    deployment: Deployment, task: Task, arguments: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        plan(task, batch=str(deployment.batch(KITE)), on_bad_rows="skip", **arguments)


def test_relative_images_start_at_the_file_or_at_the_folder_that_is_given(deployment: Deployment, task: Task) -> None:
    folder = deployment.folder / "batches" / "pictures"
    folder.mkdir(parents=True)
    Image.new("RGB", (160, 90), "teal").save(folder / "boat.png")
    path = deployment.batch({"prompt": "a boat", "image": "boat.png"})
    with pytest.raises(InputError, match=r"boat\.png"):
        plan(task, batch=str(path))
    assert plan(task, batch=str(path), images=str(folder)) == [0]
    assert list(deployment.store.list_documents("images"))


def test_batch_that_is_finished_has_no_shards(deployment: Deployment, task: Task) -> None:
    path = deployment.batch(KITE)
    plan(task, batch=str(path))
    deployment.deliver(task.xcom["batch_id"])
    again = Task(run_id="again")
    assert plan(again, batch=str(path)) == []
    clips = counts_of(deployment.catalog(), again.xcom["batch_id"]).clips
    assert (clips.done, clips.reused) == (1, 1)


def test_earlier_batch_is_planned_again_under_changed_profiles(deployment: Deployment, task: Task) -> None:
    plan(task, batch=str(deployment.batch(KITE, BOAT)))
    first = task.xcom["batch_id"]
    again = Task(run_id="again")
    assert plan(again, rerun_of=first, overrides=["preview.steps=2"]) == [0, 1]
    batch = deployment.document(f"batches/{again.xcom['batch_id']}/batch.json")
    assert (batch["parent_batch_id"], batch["name"]) == (first, "night")


@pytest.mark.parametrize("arguments", [{}, {"batch": "a.jsonl", "rerun_of": "b"}])
def test_file_and_earlier_batch_exclude_each_other(
    deployment: Deployment, task: Task, arguments: dict[str, str]
) -> None:
    with pytest.raises(InputError, match="either"):
        plan(task, **arguments)


def test_an_ffmpeg_that_cannot_deliver_stops_the_batch_before_it_begins(
    deployment: Deployment, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGI2_FFMPEG", "/bin/false")
    with pytest.raises(MissingToolError, match="/bin/false"):
        plan(task, batch=str(deployment.batch(KITE)))
    assert not list(deployment.store.list_documents("batches"))


def test_a_profile_for_other_weights_stops_the_batch_in_one_sentence(deployment: Deployment, task: Task) -> None:
    with pytest.raises(CheckpointError, match="these weights are random tiny ones: take --profile tiny"):
        plan(task, batch=str(deployment.batch({"prompt": "a kite"})), profile="1080p")
    assert plan(task, batch=str(deployment.batch(BOAT)), profile="1080p") == [0], "no row has the default profile"


def test_the_forms_default_is_made_for_the_weights(
    deployment: Deployment, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert default_profile() == "tiny"
    monkeypatch.setenv("MAGI2_CKPT_ROOT", str(REPOSITORY / "examples" / "demo_checkpoint"))
    assert default_profile() == "demo"
    monkeypatch.delenv("MAGI2_CKPT_ROOT")
    assert default_profile() == "1080p"


def test_large_batch_stays_within_the_limits_of_xcom(deployment: Deployment, task: Task) -> None:
    rows = [{"prompt": f"a kite {number}", "seed": number} for number in range(3000)]
    shards = plan(task, batch=str(deployment.batch(*rows)))
    assert len(shards) <= 128
    assert len(json.dumps(shards)) < 2048


def test_log_tells_the_first_clips_as_they_will_be_rendered_and_which_rows_are_equal(
    deployment: Deployment, task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    rows = ({"prompt": "a {red|blue} kite", "seed": 1}, {"prompt": "a red kite", "seed": 1})
    with caplog.at_level("INFO"):
        plan(task, batch=str(deployment.batch(*rows)), matrix=True)
    assert "line 1, row 1-red, seed 1, tiny" in caplog.text
    assert "line 2 is the clip of line 1 again" in caplog.text
