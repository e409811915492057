"""DAG files are wiring: short, quick to parse, and with every bound that a scheduler needs."""

from __future__ import annotations

import copy
import runpy
import subprocess
import sys
from contextlib import nullcontext
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError

FOLDER = Path(__file__).parents[2] / "dags"
FILES = sorted(FOLDER.glob("*.py"))
STAGES = ["enhance", "encode", "preview", "refine", "decode", "mux", "deliver"]


@pytest.fixture(scope="module")
def dags() -> dict[str, DAG]:
    return {dag.dag_id: dag for path in FILES for dag in [runpy.run_path(str(path))["dag"]]}


@pytest.fixture(scope="module")
def render(dags: dict[str, DAG]) -> DAG:
    return dags["magi2_render_batch"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 120


def test_all_files_together_parse_quickly_and_without_torch() -> None:
    code = f"""
import runpy, sys, time
import airflow.sdk
heavy = {{'torch', 'triton', 'transformers', 'numpy', 'minio', 'av'}}
started = time.process_time()
for path in {list(map(str, FILES))!r}:
    runpy.run_path(path)
    assert not heavy & set(sys.modules), path
print(time.process_time() - started)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert float(done.stdout.splitlines()[-1]) < 1.0  # beside Airflow's own second


def test_all_dags_are_there_and_tell_what_they_do(dags: dict[str, DAG]) -> None:
    assert set(dags) == {"magi2_render_batch", "magi2_inbox", "magi2_maintenance", "magi2_watch"}
    for dag in dags.values():
        assert dag.doc_md and "MAGI-2" in dag.description and dag.dag_display_name.startswith("MAGI-2: ")
        assert dag.tags == {"magi2", "video"} and {task.owner for task in dag.tasks} == {"magi2"}


def test_every_dag_is_bounded_and_catches_nothing_up(dags: dict[str, DAG]) -> None:
    for dag in dags.values():
        assert dag.catchup is False
        assert dag.max_active_runs <= 4
        assert dag.dagrun_timeout is not None
    assert dags["magi2_inbox"].max_active_runs == 1


def test_every_task_has_a_pool_a_time_limit_and_retries_by_class_of_error(dags: dict[str, DAG]) -> None:
    for dag in dags.values():
        for task in dag.tasks:
            assert task.queue in ("magi2_cpu", "magi2_gpu1", "magi2_gpu8")
            # What runs no stage runs in every Airflow, so that it can say which of our pools is missing.
            assert task.pool == (task.queue if task.task_id.startswith("shard.") else "default_pool")
            assert isinstance(task.execution_timeout, timedelta)
            assert task.retries >= 1
            assert task.retry_policy is not None


def test_housekeeping_steps_go_on_whatever_became_of_the_others(dags: dict[str, DAG]) -> None:
    chores = dags["magi2_maintenance"]
    assert chores.max_active_tasks == 1
    assert all(not task.upstream_task_ids and not task.downstream_task_ids for task in chores.tasks)
    order = sorted(chores.tasks, key=lambda task: task.priority_weight, reverse=True)
    assert [task.task_id for task in order] == ["expire", "sweep", "reconcile"]


def test_stages_follow_each_other_in_a_group_that_is_mapped_over_shards(render: DAG) -> None:
    (report,) = render.leaves
    assert report.task_id == "report"
    assert report.trigger_rule == "all_done"
    assert [task.task_id for task in render.roots] == ["plan"]
    chain = ["plan", *(f"shard.{stage}" for stage in STAGES), "report"]
    for task_id, following in pairwise(chain):
        assert following in render.get_task(task_id).downstream_task_ids
    for stage in STAGES:
        assert render.get_task(f"shard.{stage}").get_closest_mapped_task_group() is not None


def test_a_shard_is_delivered_before_others_go_on(render: DAG) -> None:
    weights = [len(render.get_task(f"shard.{stage}").get_flat_relative_ids(upstream=True)) for stage in STAGES]
    assert weights == sorted(weights) and render.get_task("shard.deliver").weight_rule == "upstream"


def test_stages_are_skipped_by_no_one(render: DAG) -> None:
    assert all(render.get_task(f"shard.{stage}").trigger_rule == "all_success" for stage in STAGES)


def test_shards_have_readable_names(render: DAG) -> None:
    assert all("shard" in render.get_task(f"shard.{stage}").map_index_template for stage in STAGES)


def test_finished_batch_emits_an_asset_event(render: DAG) -> None:
    assert [asset.name for asset in render.get_task("report").outlets] == ["magi2_batches"]


def test_people_are_told_of_the_end_of_a_batch_and_of_too_many_failures(render: DAG) -> None:
    report = render.get_task("report")
    for callbacks in (report.on_success_callback, report.on_failure_callback):
        assert [type(callback).__name__ for callback in callbacks] == ["BatchFinished"]
    for stage in STAGES:
        arguments = render.get_task(f"shard.{stage}")
        for callbacks in (arguments.on_success_callback, arguments.on_failure_callback):
            assert [type(callback).__name__ for callback in callbacks] == ["FailureLimitPassed"]


def test_people_are_told_of_what_the_watch_finds(dags: dict[str, DAG]) -> None:
    for task_id in ("stalled", "disk"):
        callbacks = dags["magi2_watch"].get_task(task_id).on_success_callback
        assert [type(callback).__name__ for callback in callbacks] == ["Findings"]


@pytest.mark.parametrize(
    ("values", "is_accepted"),
    [
        ({"batch": "/srv/night.jsonl"}, True),
        ({"batch": "night.jsonl", "failure_limit": 3, "on_bad_rows": "skip", "force": ["mux"], "overrides": []}, True),
        ({"rerun_of": "0a1b", "only": ["failed"], "overrides": ["refiner.steps=8"], "failure_limit": 0}, True),
        ({"batch": 7}, False),
        ({"batch": "night.jsonl", "priority": -3, "budget": 12.5}, True),
        ({"failure_limit": -1}, False),
        ({"priority": "high"}, False),
        ({"budget": 0}, False),
        ({"on_bad_rows": "ignore"}, False),
        ({"overrides": "refiner.steps=8"}, False),
    ],
)
def test_form_refuses_what_no_run_could_use(render: DAG, values: dict[str, Any], is_accepted: bool) -> None:
    expectation = nullcontext() if is_accepted else pytest.raises(ParamValidationError)
    with expectation:
        form = copy.deepcopy(render.params)
        form.update(values)
        form.validate()


def test_form_offers_the_profiles_and_stages(render: DAG) -> None:
    assert {"1080p", "tiny"} <= set(render.params.get_param("profile").schema["examples"])
    assert render.params.get_param("force").schema["examples"] == STAGES


def test_main_fields_of_the_form_are_open_at_first(render: DAG) -> None:
    open_ = [name for name in render.params if "section" not in render.params.get_param(name).schema]
    assert open_ == ["batch", "profile", "failure_limit", "on_bad_rows"]
