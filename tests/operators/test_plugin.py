"""The pages behind the buttons: only what a batch names, only for who may read it, hostile text harmless."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.api_fastapi.core_api.security import get_user
from fastapi.testclient import TestClient

from magi2.artifacts.local import LocalStore
from magi2.artifacts.manifest import ManifestDraft
from magi2.artifacts.recipe import Recipe
from operators import renders
from operators.plugin import RendersPlugin

BATCH = "0123456789abcdef"
HOSTILE = '<script>alert(1)</script>\u202e & "quotes"'
CLIP = {"clip_id": "ab" * 32, "names": [HOSTILE], "prompt": HOSTILE, "profile": "tiny", "seed": 7, "flags": []}


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    store = LocalStore(tmp_path / "store")
    recipe = Recipe("mux", 1)
    with store.stage_folder("mux", recipe.key) as folder:
        (folder / "clip.mp4").write_bytes(bytes(range(256)))
        store.publish(ManifestDraft(recipe), {"clip.mp4": folder / "clip.mp4"})
    done = {**CLIP, "stage": None, "reason": None, "key": recipe.key}
    failed = {**CLIP, "stage": "preview", "reason": HOSTILE, "key": None}
    report = {"name": HOSTILE, "done": [done], "failed": [failed], "flagged": [], "skipped": []}
    store.put_document(f"batches/{BATCH}/report.json", json.dumps(report).encode())
    store.put_document(f"batches/{BATCH}/results/0.mux.json", b"{}")
    store.put_document(f"batches/{BATCH}/batch.json", b"{}")
    monkeypatch.setattr(renders, "store", lambda: store)
    yield recipe.key
    renders.app.dependency_overrides.pop(get_user, None)
    renders.app.dependency_overrides.pop(renders.may_read, None)


@pytest.fixture
def reader(key: str) -> TestClient:
    renders.app.dependency_overrides |= {get_user: lambda: None, renders.may_read: lambda: None}
    return TestClient(renders.app, raise_server_exceptions=False)


def test_nobody_reads_without_a_login(key: str) -> None:
    renders.app.dependency_overrides |= {renders.auth_manager_from_app: lambda: None}
    anonymous = TestClient(renders.app, raise_server_exceptions=False)
    for path in (f"/batches/{BATCH}", f"/documents/batches/{BATCH}/report.json", f"/clips/{key}/clip.mp4"):
        assert anonymous.get(path).status_code in (401, 403)
    renders.app.dependency_overrides |= {renders.auth_manager_from_app: renders.get_auth_manager}


def test_hostile_text_is_shown_and_not_run(reader: TestClient) -> None:
    answer = reader.get(f"/batches/{BATCH}")
    assert answer.status_code == 200
    assert "<script>" not in answer.text and "&lt;script&gt;" in answer.text
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


def test_a_player_can_seek(reader: TestClient, key: str) -> None:
    answer = reader.get(f"/clips/{key}/clip.mp4", headers={"Range": "bytes=10-19"})
    assert (answer.status_code, answer.content) == (206, bytes(range(10, 20)))
    assert reader.head(f"/clips/{key}/clip.mp4").headers["content-type"] == "video/mp4"


@pytest.mark.parametrize(
    "path",
    [
        "/documents/batches/0123456789abcdef/batch.json",
        "/documents/batches/0123456789abcdef/results/0.secret.json",
        "/documents/batches/0123456789abcdef/results/..%2Fbatch.json",
        "/documents/batches/..%2F..%2Fartifacts/report.json",
        "/batches/ffffffffffffffff",
        f"/clips/{'0' * 64}/clip.mp4",
        f"/clips/{Recipe('mux', 1).key}/manifest.json",
    ],
)
def test_what_no_batch_names_is_not_there(reader: TestClient, path: str) -> None:
    assert reader.get(path).status_code in (404, 422)


def test_the_plugin_serves_these_pages_and_is_light_to_load(reader: TestClient) -> None:
    (mounted,) = RendersPlugin.fastapi_apps
    assert mounted["url_prefix"] == "/renders"
    assert TestClient(mounted["app"]).get(f"/batches/{BATCH}").status_code == 200
    code = "import operators.plugin, sys; assert not {'operators.renders', 'magi2.artifacts'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_documents_of_a_batch_are_served(reader: TestClient) -> None:
    assert reader.get(f"/documents/batches/{BATCH}/results/0.mux.json").json() == {}
    assert reader.get(f"/documents/batches/{BATCH}/report.json").json()["name"] == HOSTILE
