"""Batches through a real scheduler, LocalExecutor and real components, on tiny weights."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from magi2.catalog import BatchState, open_catalog
from magi2.catalog.engine import FILE_NAME
from magi2.catalog.verify import verify
from tests.airflow.airflow_site import DAG_ID, QUICK, Run, Site, is_alive, parent, wait_until
from tests.batch_counts import counts_of

CANARY = "xylophonecanary"
KITE = {"name": "kite", "prompt": f"A red kite, {CANARY}, over dunes.", "seed": 1, "profile": "tiny-preview"}
LONG = {"name": "long", "prompt": f"{CANARY} " + "on and on " * 200, "seed": 2, "profile": "tiny-preview"}
BOAT = {"name": "boat", "prompt": "A boat on a lake.", "seed": 3, "profile": "tiny"}
EMPTY = {"prompt": ""}
SETTLE_S = 10
"""For so long a file in the inbox may still be growing."""
STAGES = ["enhance", "encode", "preview", "refine", "decode", "mux", "deliver"]


@pytest.fixture(scope="module")
def finished(site: Site) -> Run:
    """Two shards, whose clips are brought to a folder; of the rows two are refused, one of them for its length."""
    (site.folder / "studio").mkdir()
    batch = site.batch("night", KITE, LONG, BOAT, EMPTY)
    return site.run(batch, failure_limit=2, delivery_target="studio")


def test_finished_clips_are_at_the_target_under_their_names(finished: Run) -> None:
    studio = finished.site.folder / "studio"
    found = {str(path.relative_to(studio)) for path in studio.rglob("*.mp4")}
    assert found == {"night/kite_1_tiny-preview.mp4", "night/boat_3_tiny.mp4"}
    assert [finished.xcom("shard.deliver", shard)["made"] for shard in (0, 1)] == [1, 1]


def test_refused_rows_sink_no_other_and_no_stage_starts_for_them(finished: Run) -> None:
    report = finished.report
    assert finished.state == "success", report
    assert [clip["names"] for clip in report["done"]] == [["kite"], ["boat"]]
    assert [(c["names"], c["stage"], c["error_code"]) for c in report["failed"]] == [
        (["row 2"], "plan", "input"),
        (["row 4"], "plan", "input"),
    ]
    assert all(len(clip["prompt"]) <= 200 for clip in report["failed"])
    assert finished.xcom("shard.enhance", 0)["made"] == 1
    for clip in report["done"]:
        assert finished.site.store.fetch("mux", clip["key"], "clip.mp4").stat().st_size > 10_000


def test_stage_that_a_profile_lacks_succeeds_without_a_process(finished: Run) -> None:
    assert finished.task("shard.refine", 0)["state"] == "success"
    started = ["output in" in finished.log("shard.refine", shard) for shard in (0, 1)]
    assert started == [False, True]


def test_people_can_tell_shards_apart(finished: Run) -> None:
    assert finished.task("shard.preview", 0)["rendered_map_index"] == "shard 0, tiny-preview, 1 clips"
    assert finished.task("shard.preview", 1)["rendered_map_index"] == "shard 1, tiny, 1 clips"


def test_xcom_holds_references_only(finished: Run) -> None:
    assert finished.xcom("plan") == [0, 1]
    sizes = finished.site.rows("select task_id, key, length(value) from xcom")
    assert len(sizes) > 12
    assert max(size for _, _, size in sizes) < 2048


def test_no_prompt_reaches_airflow_s_database_logs_or_any_file_name(finished: Run) -> None:
    site = finished.site
    assert not [table for table, text in site.texts() if CANARY in text]
    names = [path for folder in (site.folder, Path("/tmp/magi2-0/logs")) for path in folder.rglob("*")]
    assert not [path for path in names if CANARY in path.name]
    logs = [path for path in (site.airflow.home / "logs").rglob("*.log") if CANARY in path.read_text(errors="replace")]
    assert not logs


def test_links_of_a_task_are_in_the_api(finished: Run) -> None:
    path = f"{finished.site.airflow.run_path(DAG_ID, finished.run_id)}/taskInstances/shard.mux"
    links = finished.site.airflow.request("GET", f"{path}/links?map_index=1")["extra_links"]
    assert set(links) == {"Clips", "Manifest", "Log"}
    airflow, batch_id = finished.site.airflow, links["Clips"].rpartition("/")[2]
    assert links["Manifest"] == f"/renders/documents/batches/{batch_id}/results/1.mux.json"
    with urlopen(airflow.url + links["Clips"], timeout=60) as page:
        assert b"clip.mp4" in page.read()


def test_plugin_is_registered_once_and_without_an_error(site: Site) -> None:
    assert site.airflow.request("GET", "/api/v2/plugins/importErrors")["import_errors"] == []


def test_finished_batch_emits_an_asset_event_with_its_counts(finished: Run) -> None:
    events = finished.site.airflow.request("GET", "/api/v2/assets/events")["asset_events"]
    (event,) = [event for event in events if event["source_run_id"] == finished.run_id]
    assert event["extra"]["clips_done"] == 2
    assert event["extra"]["report"].endswith("/report.json")


def test_clearing_one_shard_runs_only_that_shard_and_computes_nothing(finished: Run) -> None:
    site = finished.site
    body = {
        "dry_run": False,
        "dag_run_id": finished.run_id,
        "task_ids": [["shard.preview", 1]],
        "include_downstream": True,
        "only_failed": False,
        "reset_dag_runs": True,
    }
    site.airflow.request("POST", f"/api/v2/dags/{DAG_ID}/clearTaskInstances", body)
    assert finished.wait() == "success"
    tries = {(t["task_id"], t["map_index"]): t["try_number"] for t in site.airflow.tasks(DAG_ID, finished.run_id)}
    again = {(f"shard.{stage}", 1) for stage in STAGES[2:]} | {("report", -1)}
    assert {task for task, number in tries.items() if number > 1} == again
    for stage in STAGES[2:]:
        result = finished.xcom(f"shard.{stage}", 1)
        assert (result["made"], result["reused"]) == (0, 1)
    assert finished.report["clips_done"] == 2


def test_run_fails_when_more_clips_fail_than_the_batch_allows_and_still_reports(site: Site, finished: Run) -> None:
    run = site.run(site.folder / "batches" / "night.jsonl", failure_limit=1)
    assert run.state == "failed"
    report = run.report
    assert (report["clips_failed"], report["clips_done"], report["clips_reused"]) == (2, 2, 2)
    assert report["stages_computed"] == 0
    assert run.task("shard.mux")["state"] == "skipped"  # all that may be rendered is finished
    assert run.task("report")["try_number"] == 1
    assert run.xcom("plan") == []


def test_wrong_batch_file_fails_at_once_without_a_retry(site: Site) -> None:
    run = site.run(site.folder / "batches" / "absent.jsonl")
    assert run.state == "failed"
    assert [(run.task(task)["state"], run.task(task)["try_number"]) for task in ("plan", "report")] == [
        ("failed", 1)
    ] * 2


def test_catalog_knows_all_that_the_store_has(site: Site, finished: Run) -> None:
    catalog = open_catalog(f"sqlite:///{site.folder}/store/{FILE_NAME}")
    assert not list(verify(site.store, catalog, digests=True))
    batch = catalog.batches.get(finished.report["batch_id"])
    assert batch is not None and (batch.run_id, batch.state) == (finished.run_id, BatchState.DONE)
    clips = counts_of(catalog, batch.batch_id).clips
    assert (clips.done, clips.failed) == (2, 0)


def test_finished_batch_needs_no_shard(site: Site, finished: Run) -> None:
    run = site.run(site.batch("finished", KITE, BOAT))
    assert run.state == "success"
    assert [run.task(task)["state"] for task in ("report", "shard.mux")] == ["success", "skipped"]
    assert (run.report["clips_done"], run.report["clips_reused"]) == (2, 2)


def test_housekeeping_runs(site: Site, finished: Run) -> None:
    site.airflow.unpause("magi2_maintenance")
    run_id = site.airflow.trigger("magi2_maintenance", {"dry_run": True})
    assert site.airflow.wait_until_finished("magi2_maintenance", run_id, 180) == "success"
    states = {task["task_id"]: task["state"] for task in site.airflow.tasks("magi2_maintenance", run_id)}
    assert states == dict.fromkeys(("expire", "sweep", "reconcile"), "success")


@pytest.fixture
def paused(site: Site) -> Any:
    """Runs of the render DAG are made and wait."""
    site.airflow.request("PATCH", f"/api/v2/dags/{DAG_ID}", {"is_paused": True})
    yield
    for (run_id,) in site.rows(f"select run_id from dag_run where dag_id = '{DAG_ID}' and state = 'queued'"):
        Run(site, run_id).end()
    site.airflow.request("PATCH", f"/api/v2/dags/{DAG_ID}", {"is_paused": False})


def test_inbox_starts_each_file_once_also_after_a_crash(site: Site, paused: None) -> None:
    inbox, claimed = site.folder / "inbox", site.folder / "inbox" / "claimed"
    claimed.mkdir()
    row = json.dumps(KITE)
    (inbox / "fresh.jsonl").write_text(row)
    (inbox / "growing.jsonl.partial").write_text(row)
    # What scans leave that were killed after their claim, before and after they asked for the run.
    (claimed / "before-1.jsonl").write_text(row)
    (claimed / "after-1.jsonl").write_text(row)
    body = {"logical_date": None, "dag_run_id": "after-1", "conf": {"batch": str(claimed / "after-1.jsonl")}}
    site.airflow.request("POST", f"/api/v2/dags/{DAG_ID}/dagRuns", body)

    wait_until(lambda: time.time() - (inbox / "fresh.jsonl").stat().st_ctime > SETTLE_S, 30)
    site.airflow.unpause("magi2_inbox")
    for _ in range(2):
        scan = site.airflow.trigger("magi2_inbox", {})
        assert site.airflow.wait_until_finished("magi2_inbox", scan, 180) == "success"
    assert len(list(claimed.glob("*.started"))) == 3
    site.airflow.request("PATCH", "/api/v2/dags/magi2_inbox", {"is_paused": True})
    runs = [run_id for (run_id,) in site.rows(f"select run_id from dag_run where dag_id = '{DAG_ID}'")]
    for name in ("fresh", "before", "after"):
        assert len([run_id for run_id in runs if run_id.startswith(f"{name}-")]) == 1
    assert (inbox / "growing.jsonl.partial").exists()


SLOW = {**KITE, "seed": 99}


def worker_of(site: Site, stage: str) -> int | None:
    """The process that computes a stage."""
    for pid in site.processes("magi2.runtime.worker"):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        job = Path(command[command.index(b"--job") + 1].decode())
        if job.exists() and json.loads(job.read_text())["stage"] == stage:
            return pid
    return None


def test_cancelled_run_leaves_no_process_and_stays_cancelled(site: Site) -> None:
    run = site.start(site.batch("slow", SLOW), overrides=[*QUICK[1:], "preview.steps=900"])
    wait_until(lambda: worker_of(site, "preview"), 200)
    worker = worker_of(site, "preview")
    assert worker
    task = parent(worker)
    run.end()
    wait_until(lambda: not is_alive(worker), 60)
    wait_until(lambda: not is_alive(task), 60)
    assert not site.processes("magi2.runtime.guard", "job-")
    assert (run.state, run.task("shard.preview", 0)["state"]) == ("failed", "failed")
