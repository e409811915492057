"""Batches, their numbers, and what leads to them."""

from __future__ import annotations

from fastapi.testclient import TestClient

from magi2.catalog import BatchState
from magi2.catalog.records import Action, Actor
from tests.operators.renders.renders_site import BATCH, HOSTILE, OTHER, RUN, Site, client, end


def test_the_newest_batch_comes_first(viewer: TestClient) -> None:
    page = viewer.get("/api/batches").json()
    assert [batch["batch_id"] for batch in page["batches"]] == [BATCH, OTHER]
    assert (page["total"], page["offset"]) == (2, 0)
    second = viewer.get("/api/batches?offset=1&limit=1").json()
    assert [batch["batch_id"] for batch in second["batches"]] == [OTHER]
    assert viewer.get("/api/batches?offset=5").json()["batches"] == []


def test_batches_are_found_by_state_and_text(viewer: TestClient) -> None:
    def found(query: str) -> list[str]:
        return [batch["batch_id"] for batch in viewer.get(f"/api/batches?{query}").json()["batches"]]

    assert (found("state=running"), found("state=waiting"), found("state=done")) == ([BATCH], [OTHER], [])
    assert found(f"text={OTHER[:6]}") == [OTHER]
    assert found("text=%25") == []
    assert viewer.get("/api/batches?state=lost").status_code == 422
    assert viewer.get("/api/batches?limit=101").status_code == 422


def test_a_batch_is_told_in_numbers(viewer: TestClient) -> None:
    batch = viewer.get(f"/api/batches/{BATCH}").json()
    assert batch["clips"] == {
        **{"total": 8, "waiting": 1, "running": 1, "done": 4, "failed": 2},
        **{"skipped": 0, "cancelled": 0, "reused": 2},
    }
    assert [stage["stage"] for stage in batch["stages"]] == ["enhance", "encode", "preview", "refine", "decode", "mux"]
    preview = batch["stages"][2]
    assert {name: preview[name] for name in ("total", "done", "reused", "running", "failed")} == {
        **{"total": 8, "done": 4, "reused": 1, "running": 0, "failed": 2},
    }
    assert batch["accelerator_seconds"] == 8 * (3 * 63 + 5 + 5 + 7)
    assert (batch["cost"], batch["currency"], batch["budget"]) == (batch["accelerator_seconds"] / 100, "EUR", None)
    assert (batch["is_live"], batch["is_paused"], batch["started_by"]) == (True, False, "ann")
    assert batch["run_path"] == "/dags/magi2_render_batch/runs/manual__2031-02-03T04%3A05%3A06%2B00%3A00"
    assert batch["created_at"].endswith("Z")


def test_an_unknown_batch_is_not_there(viewer: TestClient) -> None:
    for path in ("", "/clips", "/facets", "/failures", "/actions"):
        assert viewer.get(f"/api/batches/{'f' * 16}{path}").status_code == 404
        assert viewer.get(f"/api/batches/nonsense{path}").status_code == 422


def test_filters_are_told_with_their_counts(viewer: TestClient) -> None:
    facets = viewer.get(f"/api/batches/{BATCH}/facets").json()
    assert {each["value"]: each["count"] for each in facets["profiles"]} == {"1080p": 6, "540p": 2}
    assert {each["value"]: each["count"] for each in facets["tags"]} == {"night": 7, HOSTILE: 1}
    assert sum(each["count"] for each in facets["states"]) == 8


def test_failures_are_told_by_stage_and_error(site: Site, viewer: TestClient) -> None:
    failures = viewer.get(f"/api/batches/{BATCH}/failures").json()
    (group,) = failures["groups"]
    assert (failures["total"], group["stage"], group["count"], group["error_code"]) == (1, "preview", 2, "contract")
    lost = sorted([site.id("lost"), site.id("nan")])
    assert [clip["clip_id"] for clip in group["examples"]] == lost
    wanted = {"stage": "preview", "error_code": "contract", "state": "failed"}
    shown = viewer.get(f"/api/batches/{BATCH}/clips", params=wanted).json()
    assert sorted(clip["clip_id"] for clip in shown["clips"]) == lost
    assert viewer.get(f"/api/batches/{BATCH}/clips", params={"error_code": "image"}).json()["total"] == 0


def test_refused_rows_are_told_with_the_failures(own_site: Site) -> None:
    reasons = {number: f"row {number} is no prompt" for number in range(1, 61)}
    own_site.catalog.batches.refuse_rows(BATCH, reasons)
    refused = client().get(f"/api/batches/{BATCH}/failures").json()["refused"]
    assert refused == [{"row": number, "reason": reasons[number]} for number in range(1, 51)]
    assert client().get(f"/api/batches/{BATCH}").json()["refused_rows"] == 60


def test_who_did_what_is_told_the_newest_first(own_site: Site) -> None:
    for name in ("ann", "bob"):
        own_site.catalog.control.note(BATCH, Action.RERUN, {"only": name}, by=Actor(f"id of {name}", name))
    actions = client().get(f"/api/batches/{BATCH}/actions").json()["actions"]
    assert [(each["user_id"], each["user_name"], each["action"], each["arguments"]) for each in actions] == [
        ("id of bob", "bob", "rerun", {"only": "bob"}),
        ("id of ann", "ann", "rerun", {"only": "ann"}),
    ]


def test_a_tab_finds_the_batch_of_its_run(viewer: TestClient) -> None:
    def found(**query: str) -> dict[str, object]:
        return dict(viewer.get("/api/lookup", params={"dag_id": "magi2_render_batch", "run_id": RUN, **query}).json())

    assert found()["batch_id"] == BATCH
    assert found(task_id="shard.preview", map_index="3") | {"name": ""} == {
        **{"batch_id": BATCH, "name": "", "shard": 3, "stage": "preview"}
    }
    assert found(task_id="report", map_index="{MAP_INDEX}")["shard"] is None
    assert found(task_id="report", map_index="-1")["stage"] is None
    assert found(task_id="shard.../../etc", map_index="\u0663")["shard"] is None
    assert found(run_id="manual__other").keys() == {"detail"}


def test_a_finished_batch_is_not_live(own_site: Site) -> None:
    own_site.catalog.batches.mark(OTHER, BatchState.CANCELLED)
    end(own_site)
    page = client().get("/api/batches").json()
    assert [(batch["state"], batch["is_live"], batch["seconds_left"]) for batch in page["batches"]] == [
        ("failed", False, None),
        ("cancelled", False, None),
    ]


def test_a_catalog_that_fails_is_no_fault_of_the_page(own_site: Site) -> None:
    own_site.catalog.database.write(lambda connection: connection.exec_driver_sql("DROP TABLE batch_actions"))
    answer = client().get(f"/api/batches/{BATCH}/actions")
    assert (answer.status_code, "sqlite" in answer.text) == (503, False)
