"""Actions: done by Airflow as the caller, written down with who and when, refused where they make no sense."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from magi2.batches.row_clips import MAX_PRIORITY
from magi2.catalog import Actor, BatchState, ClipState, NewBatch
from magi2.catalog.clips import ClipQuery
from magi2_airflow.renders.airflow_api import airflow_app
from magi2_airflow.renders.app import app
from tests.operators.renders.fake_airflow import TRIGGER, FakeAirflow
from tests.operators.renders.renders_site import BATCH, OTHER, RUN, Site, client, end


@pytest.fixture
def airflow(own_site: Site) -> Iterator[FakeAirflow]:
    fake = FakeAirflow()
    app.dependency_overrides[airflow_app] = lambda: fake.app
    yield fake


@pytest.fixture
def user(own_site: Site, airflow: FakeAirflow) -> TestClient:
    return client("user")


def act(user: TestClient, action: str, **body: Any) -> Any:
    return user.post(f"/api/batches/{BATCH}/{action}", json=body)


def log(site: Site, batch_id: str = BATCH) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (each.by.user_id, each.action, dict(each.arguments)) for each in site.catalog.control.actions(batch_id).rows
    ]


def test_a_batch_pauses_and_goes_on(own_site: Site, user: TestClient) -> None:
    assert act(user, "pause").json()["batch"]["is_paused"] is True
    assert act(user, "resume").json()["batch"]["is_paused"] is False
    assert log(own_site) == [("the user", "resume", {}), ("the user", "pause", {})]


def test_priority_is_set(own_site: Site, user: TestClient) -> None:
    assert act(user, "priority", priority=7).json()["batch"]["priority"] == 7
    assert log(own_site) == [("the user", "set_priority", {"priority": 7})]
    assert act(user, "priority", priority=-MAX_PRIORITY).status_code == 200
    assert act(user, "priority", priority=MAX_PRIORITY + 1).status_code == 422


def test_a_budget_is_set_and_lifted(own_site: Site, user: TestClient) -> None:
    assert act(user, "budget", budget=12.5).json()["batch"]["budget"] == 12.5
    end(own_site)  # a rerun may cost what its batch may
    assert act(user, "budget", budget=None).json()["batch"]["budget"] is None
    assert log(own_site) == [
        ("the user", "set_budget", {"budget": None}),
        ("the user", "set_budget", {"budget": 12.5}),
    ]


@pytest.mark.parametrize("content", ["{}", '{"budget": 0}', '{"budget": -1}', '{"budget": 1e999}', '{"budget": NaN}'])
def test_a_budget_that_cannot_be_spent_is_refused(own_site: Site, user: TestClient, content: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = user.post(f"/api/batches/{BATCH}/budget", content=content, headers=headers)
    assert (answer.status_code, log(own_site)) == (422, [])


def test_a_budget_needs_a_price_and_can_be_lifted_without(own_site: Site, user: TestClient) -> None:
    free = replace(own_site.deployment.settings, price_per_accelerator_hour=None)
    own_site.deployment.settings = free
    answer = act(user, "budget", budget=5)
    assert (answer.status_code, "needs a price" in answer.json()["detail"]) == (409, True)
    assert act(user, "budget", budget=None).status_code == 200
    assert log(own_site) == [("the user", "set_budget", {"budget": None})]


def test_a_cancel_ends_the_run_and_the_batch(own_site: Site, user: TestClient, airflow: FakeAirflow) -> None:
    batch = act(user, "cancel").json()["batch"]
    assert (batch["state"], batch["is_live"], batch["clips"]["cancelled"]) == ("cancelled", False, 2)
    assert batch["clips"]["done"] == 4
    run = "manual__2031-02-03T04%3A05%3A06%2B00%3A00"
    assert airflow.asked == [
        ("PATCH", f"{TRIGGER}/{run}", {"state": "failed", "note": "cancelled by the user"}, None),
    ]
    assert log(own_site) == [("the user", "cancel", {})]


def test_a_batch_by_hand_is_cancelled_without_airflow(own_site: Site, user: TestClient, airflow: FakeAirflow) -> None:
    assert user.post(f"/api/batches/{OTHER}/cancel", json={}).json()["batch"]["state"] == "cancelled"
    assert airflow.asked == []


def test_a_run_that_is_gone_needs_no_end(own_site: Site, user: TestClient, airflow: FakeAirflow) -> None:
    airflow.answer = (404, {"detail": "no such run"})
    assert act(user, "cancel").json()["batch"]["state"] == "cancelled"


def test_a_wish_to_cancel_stands_when_airflow_refuses(own_site: Site, user: TestClient, airflow: FakeAirflow) -> None:
    airflow.answer = (403, {"detail": "Forbidden"})
    answer = act(user, "cancel")
    assert (answer.status_code, answer.json()) == (403, {"detail": "Forbidden"})
    batch = user.get(f"/api/batches/{BATCH}").json()
    assert (batch["state"], batch["is_cancel_requested"]) == ("running", True)


def test_a_rerun_is_a_new_run_of_the_caller(own_site: Site, user: TestClient, airflow: FakeAirflow) -> None:
    user.cookies.set("_token", "the.callers.token")
    answer = act(user, "rerun", from_stage="decode", only=[own_site.id("fox")], failure_limit=1)
    assert answer.status_code == 200, answer.text
    assert answer.json()["run_id"] == "manual__new+run"
    assert answer.json()["run_path"] == "/dags/magi2_render_batch/runs/manual__new%2Brun"
    ((method, path, body, credential),) = airflow.asked
    assert (method, path, credential) == ("POST", TRIGGER, "Bearer the.callers.token")
    assert body["conf"] == {
        "rerun_of": BATCH,
        "only": [own_site.id("fox")],
        "overrides": [],
        "failure_limit": 1,
        "budget": None,
        "force": ["decode", "mux"],
    }
    ((who, action, arguments),) = log(own_site)
    assert (who, action, arguments["run_id"], arguments["from_stage"]) == (
        *("the user", "rerun", "manual__new+run", "decode"),
    )


def test_a_rerun_may_cost_what_its_batch_may(own_site: Site, user: TestClient, airflow: FakeAirflow) -> None:
    own_site.catalog.control.set_budget(BATCH, 12.5, by=Actor("ann", "ann"))
    act(user, "rerun")
    assert airflow.asked[0][2]["conf"]["budget"] == 12.5


def test_a_script_brings_its_own_credential(own_site: Site, airflow: FakeAirflow) -> None:
    script = client("user")
    script.headers["Authorization"] = "Bearer script.token"
    act(script, "rerun")
    assert airflow.asked[0][3] == "Bearer script.token"


def test_failed_clips_are_rerun_when_the_batch_ended(own_site: Site, user: TestClient, airflow: FakeAirflow) -> None:
    early = act(user, "rerun", only="failed")
    assert (early.status_code, "goes on" in early.json()["detail"]) == (409, True)
    end(own_site)
    assert act(user, "rerun", only="failed").status_code == 200
    conf = {"rerun_of": BATCH, "only": ["failed"], "overrides": [], "failure_limit": 2, "budget": None, "force": []}
    assert airflow.asked[0][2]["conf"] == conf
    own_site.catalog.batches.mark(OTHER, BatchState.CANCELLED)
    none = user.post(f"/api/batches/{OTHER}/rerun", json={"only": "failed"})
    assert (none.status_code, none.json()["detail"]) == (409, "no clip of the batch failed")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"only": ["f" * 64]}, "has no clip ffffffffffff"),
        ({"overrides": ["refiner.stepz=8"]}, "stepz"),
        ({"overrides": ["refiner.steps=many"]}, "steps"),
        ({"overrides": ["preview.steps=8"], "from_stage": "decode"}, "changes the preview stage already"),
        ({"overrides": ["text.negative_prompt=other.txt"], "from_stage": "mux"}, "changes the preview stage already"),
        ({"overrides": ["text.negative_prompt=/etc/passwd"]}, "is not a name"),
        ({"overrides": ["preview.steps=" + "[" * 21 + "]" * 21]}, "nested more than"),
    ],
)
def test_what_the_run_would_refuse_is_refused_at_once(
    own_site: Site, user: TestClient, airflow: FakeAirflow, body: dict[str, Any], reason: str
) -> None:
    answer = act(user, "rerun", **body)
    assert answer.status_code == 400 and reason in answer.json()["detail"], answer.text
    assert (airflow.asked, log(own_site)) == ([], [])


def test_changes_make_the_stages_that_they_reach(own_site: Site, user: TestClient, airflow: FakeAirflow) -> None:
    assert act(user, "rerun", overrides=["refiner.steps=8"], from_stage="refine").status_code == 200
    conf = airflow.asked[0][2]["conf"]
    assert (conf["overrides"], conf["force"], conf["only"]) == (["refiner.steps=8"], [], [])


def test_what_airflow_refuses_is_told_not_written_down(own_site: Site, user: TestClient, airflow: FakeAirflow) -> None:
    airflow.answer = (400, {"detail": "the DAG has import errors"})
    answer = act(user, "rerun")
    assert (answer.status_code, answer.json()["detail"]) == (400, "the DAG has import errors")
    assert log(own_site) == []


def test_what_comes_too_late_is_a_conflict(own_site: Site, user: TestClient, airflow: FakeAirflow) -> None:
    end(own_site)
    for action in ("pause", "resume", "cancel"):
        answer = act(user, action)
        assert (answer.status_code, "too late" in answer.json()["detail"]) == (409, True)
    assert (airflow.asked, log(own_site)) == ([], [])


def test_an_unknown_batch_cannot_be_acted_on(own_site: Site, user: TestClient, airflow: FakeAirflow) -> None:
    bodies = {"priority": {"priority": 1}, "budget": {"budget": 1}, "limit": {"failure_limit": 1}}
    for action in ("pause", "resume", "cancel", "rerun", "priority", "budget", "limit", "delete"):
        answer = user.post(f"/api/batches/{'f' * 16}/{action}", json=bodies.get(action, {}))
        assert answer.status_code == 404
    assert airflow.asked == []


def test_the_run_of_the_batch_is_the_one_that_ends(own_site: Site, user: TestClient, airflow: FakeAirflow) -> None:
    assert own_site.catalog.batches.get(BATCH).run_id == RUN  # type: ignore[union-attr]
    act(user, "cancel")
    assert airflow.asked[0][1].rpartition("/")[2] == "manual__2031-02-03T04%3A05%3A06%2B00%3A00"


def test_a_limit_is_set_and_told_beside_the_failures(own_site: Site, user: TestClient) -> None:
    batch = act(user, "limit", failure_limit=7).json()["batch"]
    assert (batch["failure_limit"], batch["failures"], batch["is_stopped"]) == (7, "2 failed of at most 7", False)
    assert log(own_site) == [("the user", "set_limit", {"failure_limit": 7})]
    assert act(user, "limit", failure_limit=-1).status_code == 422


def test_an_ended_batch_goes_on_with_what_it_left_out(own_site: Site, user: TestClient, airflow: FakeAirflow) -> None:
    stop(own_site)
    refused = act(user, "resume")
    assert (refused.status_code, "raise the limit first" in refused.json()["detail"]) == (409, True)
    assert airflow.asked == []
    act(user, "limit", failure_limit=5)
    airflow.answer = (200, {"task_instances": [{"task_id": "shard.mux"}, {"task_id": "shard.mux"}]})
    assert act(user, "resume").status_code == 200
    (_, read, _, _), (_, clear, body, _) = airflow.asked
    assert read.endswith("/taskInstances") and clear == "/api/v2/dags/magi2_render_batch/clearTaskInstances"
    assert (body["task_ids"], body["dag_run_id"], body["dry_run"], body["only_failed"]) == (
        ["shard.mux"],
        RUN,
        False,
        False,
    )
    assert log(own_site)[0] == ("the user", "resume", {})


def test_a_batch_is_deleted_when_it_has_ended_and_somebody_confirms(own_site: Site, user: TestClient) -> None:
    early = act(user, "delete", confirm=True)
    assert (early.status_code, "cancel it" in early.json()["detail"]) == (409, True)
    end(own_site)
    told = act(user, "delete").json()
    assert (told["dry_run"], own_site.catalog.batches.get(BATCH) is None) == (True, False)
    assert act(user, "delete", confirm=True).json()["dry_run"] is False
    assert own_site.catalog.batches.get(BATCH) is None
    assert user.get(f"/api/batches/{OTHER}").status_code == 200


def test_why_a_batch_waits_is_told(own_site: Site, user: TestClient) -> None:
    assert act(user, "pause").json()["batch"]["paused_because"] == "paused by the user"
    assert act(user, "resume").json()["batch"]["paused_because"] is None


def stop(site: Site) -> None:
    """Let the batch have ended because more clips failed than it allows."""
    batch = site.catalog.batches.get(BATCH)
    assert batch is not None
    values = {field.name: getattr(batch, field.name) for field in fields(NewBatch)}
    site.catalog.batches.create(NewBatch(**{**values, "failure_limit": 1, "on_limit": "stop"}), {})
    waiting = [each.clip_id for each in site.catalog.clips.search(ClipQuery(state=ClipState.WAITING)).rows]
    site.catalog.clips.set_aside(BATCH, waiting, ClipState.SKIPPED, "2 failed of at most 1: stopped")
    end(site)
