"""The plugin as Airflow loads it: light, and in all the places where people look."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from airflow.plugins_manager import AirflowPlugin
from fastapi.testclient import TestClient

from magi2_airflow.mount import STATIC
from magi2_airflow.plugin import NAME, ROUTES, RendersPlugin, react_app


def test_a_task_that_loads_plugins_does_not_load_the_pages() -> None:
    modules = "{'magi2_airflow.renders', 'magi2_airflow.renders.app', 'magi2.artifacts', 'magi2.catalog'}"
    code = f"import magi2_airflow.plugin, sys; found = {modules} & set(sys.modules); assert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_app_is_mounted_where_the_links_lead() -> None:
    (mounted,) = RendersPlugin.fastapi_apps
    assert mounted["url_prefix"] == "/renders"
    assert TestClient(mounted["app"]).get("/api/batches").status_code == 401


def test_the_page_is_in_the_navigation_and_on_runs_and_tasks() -> None:
    assert issubclass(RendersPlugin, AirflowPlugin)
    apps = {app["destination"]: app for app in RendersPlugin.react_apps}
    assert apps.keys() == {"nav", "dag_run", "task_instance"} and apps["nav"]["url_route"] == "renders"
    assert len({app["url_route"] for app in apps.values()}) == len(ROUTES)
    assert {app["name"] for app in apps.values()} == {NAME}
    assert len({app["bundle_url"] for app in apps.values()}) == 1
    for app in apps.values():
        for address in (app["bundle_url"], app["icon"], app["icon_dark_mode"]):
            assert address.startswith("/renders/static/")
            assert (STATIC / Path(address.partition("?")[0]).name).is_file()


def test_the_bundle_is_found_where_airflow_is_not_at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://host.example/air/")
    assert react_app("nav", "renders")["bundle_url"].startswith("/air/renders/static/renders.js?v=")
