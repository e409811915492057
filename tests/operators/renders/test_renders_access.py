"""Who may do what, walked over every route there is."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from magi2_airflow.renders.app import app
from tests.operators.renders.renders_site import BATCH, NO_ROLE, Site, client

OPEN_TO_ALL_LOGGED_IN = {"/static/{name}"}
STARTS = {"/api/batches/{batch_id}/rerun", "/api/start", "/api/start/look"}


def routes() -> Iterator[tuple[str, APIRoute]]:
    for route in app.routes:
        assert isinstance(route, APIRoute), f"{route} is no route with dependencies"
        for method in route.methods:
            yield method, route


ALL = sorted({(method, route.path) for method, route in routes()})


def asked(site: Site, path: str) -> str:
    values = {"batch_id": BATCH, "clip_id": site.id("fox"), "key": site.key("fox"), "number": "1", "stage": "mux"}
    if path == "/media/{key}/{name}":
        values["name"] = "clip.mp4"
    elif path == "/static/{name}":
        values["name"] = "plain.css"
    elif path.endswith("/results/{name}"):
        values["name"] = "0.mux.json"
    else:
        values["name"] = "report.json"
    asked = re.sub(r"{(\w+)}", lambda match: values[match[1]], path)
    return asked + "?dag_id=magi2_render_batch&run_id=x" if asked == "/api/lookup" else asked


def test_the_walk_covers_pages_media_and_actions() -> None:
    assert {("GET", "/api/batches"), ("HEAD", "/media/{key}/{name}"), ("GET", "/")} <= set(ALL)
    assert len([path for method, path in ALL if method == "POST"]) == 10
    assert {method for method, _ in ALL} == {"GET", "HEAD", "POST"}


@pytest.mark.parametrize(("method", "path"), ALL)
def test_nobody_gets_in_without_a_login(site: Site, method: str, path: str) -> None:
    anonymous = client(None)
    assert anonymous.request(method, asked(site, path), json={} if method == "POST" else None).status_code == 401
    broken = {"Authorization": "Bearer of.bad.news"}
    answer = anonymous.request(method, asked(site, path), headers=broken, json={} if method == "POST" else None)
    assert answer.status_code in (401, 403)


@pytest.mark.parametrize(("method", "path"), ALL)
def test_a_viewer_looks_and_does_not_touch(site: Site, method: str, path: str) -> None:
    answer = client("viewer").request(method, asked(site, path), json={} if method == "POST" else None)
    if method == "POST":
        assert (answer.status_code, "may not" in answer.json()["detail"]) == (403, True)
    else:
        assert answer.status_code in (200, 204, 404), answer.text
        assert answer.status_code == 200 or path.startswith(("/documents", "/api/lookup", "/images", "/pictures"))


@pytest.mark.parametrize(("method", "path"), ALL)
def test_a_login_without_rights_sees_the_bundle_and_nothing_of_anybody(site: Site, method: str, path: str) -> None:
    answer = client(NO_ROLE).request(method, asked(site, path), json={} if method == "POST" else None)
    assert answer.status_code == (200 if path in OPEN_TO_ALL_LOGGED_IN else 403)


@pytest.mark.parametrize("path", sorted(path for method, path in ALL if method == "POST"))
@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://testserver.evil.example"},
        {"Origin": "http://testserver:8081"},
    ],
)
def test_a_page_of_another_site_does_nothing(site: Site, path: str, headers: dict[str, str]) -> None:
    answer = client("admin").post(asked(site, path), json={}, headers=headers)
    assert (answer.status_code, "another site" in answer.json()["detail"]) == (403, True)
    assert site.catalog.control.actions(BATCH).total == 0


@pytest.mark.parametrize("path", sorted(path for method, path in ALL if method == "POST"))
def test_a_form_of_another_page_is_no_body(site: Site, path: str) -> None:
    user = client("user")
    assert user.post(asked(site, path), data={"priority": "1"}).status_code == 422
    assert user.post(asked(site, path), content="{}", headers={"Content-Type": "text/plain"}).status_code == 422
    assert user.post(asked(site, path)).status_code == 422
    assert user.post(asked(site, path), json={"unknown": 1}).status_code == 422
    assert site.catalog.control.actions(BATCH).total == 0


@pytest.mark.parametrize(
    "headers",
    [{}, {"Sec-Fetch-Site": "same-origin"}, {"Origin": "http://testserver"}],
)
def test_our_own_page_and_scripts_may_act(own_site: Site, headers: dict[str, str]) -> None:
    answer = client("user").post(f"/api/batches/{BATCH}/pause", json={}, headers=headers)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("role", "can_act"), [("viewer", False), ("user", True), ("admin", True)])
def test_the_page_is_told_what_it_may_offer(site: Site, role: str, can_act: bool) -> None:
    assert client(role).get("/api/me").json() == {"id": f"the {role}", "name": f"the {role}", "can_act": can_act}


def test_what_a_page_reads_is_kept_by_no_cache(viewer: TestClient) -> None:
    headers = viewer.get("/api/batches").headers
    assert headers["cache-control"] == "no-store"
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert headers["x-content-type-options"] == "nosniff"
