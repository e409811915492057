"""Every page says what Airflow lacks; tasks are told without a login, and nothing but names."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from magi2_airflow.mount import MOUNT, READY
from magi2_airflow.plugin import serve
from magi2_airflow.renders import airflow_check
from magi2_airflow.renders.airflow_check import Recent
from magi2_airflow.renders.store_check import FRESH_S
from tests.operators.renders.renders_site import BATCH, Site, client

LACK = "Airflow has no pool magi2_gpu8"


def test_nothing_is_said_of_an_airflow_that_has_all(site: Site) -> None:
    assert client().get("/api/airflow").json() == {"problems": []}


def test_every_page_says_what_airflow_lacks(own_site: Site) -> None:
    own_site.lacks.append(LACK)
    assert client().get("/api/airflow").json() == {"problems": [LACK]}
    for path in ("/", f"/batches/{BATCH}", f"/batches/{BATCH}/clips/{own_site.id('fox')}"):
        assert LACK in client().get(path).text


def test_tasks_are_told_without_a_login_and_nothing_else_is(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow_check, "_missing_pools", lambda: ["magi2_gpu8"])
    monkeypatch.setattr(airflow_check, "_idle_queues", lambda: [])
    anybody = TestClient(serve, root_path=MOUNT)
    assert anybody.get(READY).json() == {"missing_pools": ["magi2_gpu8"], "queues_without_worker": []}
    assert anybody.get(f"{MOUNT}/api/airflow").status_code == 401


def test_what_was_found_is_asked_again_only_after_a_while() -> None:
    now, asked = [0.0], list[float]()
    recent = Recent(lambda: asked.append(now[0]), clock=lambda: now[0])
    for now[0] in (0.0, 1.0, FRESH_S, FRESH_S + 1):
        recent()
    assert asked == [0.0, FRESH_S]


def test_executors_without_queues_lack_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "LocalExecutor")
    assert airflow_check._find_idle_queues() == []
