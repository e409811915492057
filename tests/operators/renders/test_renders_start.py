"""Starting a batch from the page: what is said of the rows, and what the run is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from magi2.inputs.limits import MAX_INLINE_BYTES
from magi2_airflow.renders.airflow_api import airflow_app
from magi2_airflow.renders.app import app
from tests.operators.renders.fake_airflow import TRIGGER, FakeAirflow
from tests.operators.renders.renders_site import Site, client

ROWS = "prompt,seed\na kite,1\na boat\n<b>a tree</b>,3\n"


@pytest.fixture
def airflow(site: Site) -> Iterator[FakeAirflow]:
    fake = FakeAirflow()
    app.dependency_overrides[airflow_app] = lambda: fake.app
    yield fake
    del app.dependency_overrides[airflow_app]


@pytest.fixture
def user(site: Site, airflow: FakeAirflow) -> TestClient:
    return client("user")


def test_the_form_knows_the_profiles_and_the_one_of_the_weights(user: TestClient) -> None:
    form = user.get("/api/start").json()
    assert form["profile"] in form["profiles"] and "demo" in form["profiles"]


def test_rows_are_counted_and_shown_and_nothing_is_started(user: TestClient, airflow: FakeAirflow) -> None:
    looked = user.post("/api/start/look", json={"rows": ROWS, "profile": "demo"}).json()
    assert (looked["rows"], looked["bad_rows"]) == (3, 1)
    assert looked["first"] == [{"text": "a kite"}, {"text": "<b>a tree</b>"}] and looked["plan"] is None
    assert looked["bad"][0]["row"] == 3 and "fewer cells" in looked["bad"][0]["reason"]
    assert not airflow.asked


def test_where_the_weights_are_clips_cost_and_equal_rows_are_told(
    site: Site, user: TestClient, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(site.deployment.settings, ckpt_root=tiny_checkpoint)
    monkeypatch.setattr(site.deployment, "settings", settings)
    rows = "prompt,seed,image\na kite,1,\na boat,2,a.png\na kite,1,\n"
    looked = user.post("/api/start/look", json={"rows": rows, "profile": "tiny"}).json()
    assert (looked["rows"], looked["bad_rows"], looked["plan"]["clips"]) == (3, 1, 1)
    assert "is a relative path" in looked["bad"][0]["reason"]
    assert looked["first"] == [{"text": "a kite (tiny, seed 1)"}] and len(looked["plan"]["equal"]) == 1
    assert looked["plan"]["unmeasured_stages"]
    asked = {"rows": '{"prompt": "a {red|blue} kite"}', "profile": "tiny"}
    clips = [user.post("/api/start/look", json={**asked, "matrix": each}).json()["plan"]["clips"] for each in (0, 1)]
    assert clips == [1, 2]


def test_the_run_is_given_the_rows_as_they_are(user: TestClient, airflow: FakeAirflow) -> None:
    answer = user.post("/api/start", json={"rows": ROWS, "profile": "demo", "name": "evening", "matrix": True})
    assert answer.json()["run_path"].endswith("manual__new%2Brun")
    ((method, path, sent, _),) = airflow.asked
    assert (method, path) == ("POST", TRIGGER)
    assert sent["conf"] == {"rows": ROWS, "profile": "demo", "name": "evening", "matrix": True}


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"rows": "[1"}, 400),
        ({"rows": "a kite"}, 400),
        ({"profile": "absent"}, 400),
        ({"rows": "é" * (MAX_INLINE_BYTES // 2 + 1)}, 400),
        ({"rows": "a" * (MAX_INLINE_BYTES + 1)}, 422),
        ({"rows": ""}, 422),
        ({"profile": "../demo"}, 422),
        ({"name": "a" * 201}, 422),
        ({"batch": "/etc/passwd"}, 422),
    ],
)
@pytest.mark.parametrize("path", ["/api/start", "/api/start/look"])
def test_what_no_run_could_be_planned_from_starts_none(
    path: str, change: dict[str, str], status: int, user: TestClient, airflow: FakeAirflow
) -> None:
    assert user.post(path, json={"rows": ROWS, "profile": "demo", **change}).status_code == status
    assert not airflow.asked
