"""`magi2 catalog` and `magi2 verify`, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from sqlalchemy import URL
from typer.testing import CliRunner, Result

from magi2.artifacts import LocalStore
from magi2.catalog import open_catalog
from magi2.catalog.tables import REVISION
from magi2.cli import catalog as commands
from magi2.cli.status import status_command
from magi2.errors import ConfigError
from tests.catalog.catalog_samples import StoredPlan, done, enter, failed, make_clip, publish

app = typer.Typer()
app.add_typer(commands.app, name="catalog")
app.command("verify")(commands.verify_command)
app.command("status")(status_command)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, store: LocalStore) -> None:
    monkeypatch.setenv("MAGI2_STORE", str(store.root))
    monkeypatch.delenv("MAGI2_CATALOG", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def values(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


def test_migrate_says_where_the_catalog_is(store: LocalStore) -> None:
    for _ in range(2):
        ended = run("catalog", "migrate")
        assert ended.exit_code == 0
        assert ended.stdout == f"{store.root}/catalog.sqlite: tables of version {REVISION}\n"


def test_migrate_makes_a_server_usable(empty_url: URL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGI2_CATALOG", empty_url.render_as_string(hide_password=False))
    if empty_url.get_backend_name() == "postgresql":
        with pytest.raises(ConfigError, match="magi2 catalog migrate"):
            run("status")
    assert run("catalog", "migrate").exit_code == 0
    assert values("status") == {
        "artifacts": {},
        "batches": [],
        "quarantine": {"count": 0, "size_bytes": 0},
    }


def test_remote_store_without_an_address_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGI2_STORE", "s3://clips")
    with pytest.raises(ConfigError, match="MAGI2_CATALOG is not set"):
        run("status")


def test_rebuild_and_verify_tell_what_they_found(store: LocalStore) -> None:
    manifest, clip = publish(store), make_clip()
    StoredPlan(store).save([], [(clip, manifest.key)])
    problems = run("verify")
    assert problems.exit_code == 1
    assert f"not_indexed mux/{manifest.key}" in problems.stdout
    assert "0 artifacts in the catalog, 0 reference images, 0 in quarantine, 2 problems" in problems.stdout
    assert [row["kind"] for row in values("verify", "--no-digests")["problems"]] == ["not_indexed", "not_indexed"]
    rebuilt = run("catalog", "rebuild")
    assert rebuilt.exit_code == 0
    assert "1 artifacts, 1 batches, 1 clips" in rebuilt.stdout
    sound = run("verify")
    counts = "1 artifacts in the catalog, 0 reference images, 0 in quarantine, 0 problems\n"
    assert (sound.exit_code, sound.stdout) == (0, counts)
    assert values("verify") == {"artifacts": 1, "images": 0, "problems": [], "quarantine": []}


def test_quarantine_is_counted_and_listed_and_is_no_problem(store: LocalStore) -> None:
    manifest = publish(store)
    store.condemn("mux", manifest.key, why="its SHA-256 is another")
    (found,) = store.condemned()
    assert values("status")["quarantine"] == {"count": 1, "size_bytes": found.size_bytes}
    assert "quarantine 1 damaged, 0.000 GB" in run("status").stdout
    listed = run("verify")
    assert listed.exit_code == 0
    assert f"quarantine  {found.place}: mux/{manifest.key}" in listed.stdout
    (value,) = values("verify")["quarantine"]
    assert (value["what"], value["why"]) == (f"mux/{manifest.key}", "its SHA-256 is another")


def test_unreadable_document_makes_rebuild_fail(store: LocalStore) -> None:
    StoredPlan(store).put("batch.json", {"batch_id": "night"})
    ended = run("catalog", "rebuild")
    assert ended.exit_code == 1
    assert "damaged     batches/night: batches/night/batch.json: name: Field required" in ended.stdout
    assert values("catalog", "rebuild")["problems"][0]["place"] == "batches/night"


def test_status_tells_of_batches_by_stage_and_of_artifacts(store: LocalStore) -> None:
    catalog = open_catalog(f"sqlite:///{store.root / 'catalog.sqlite'}")
    manifest = publish(store)
    catalog.artifacts.index([manifest])
    one, two, _ = enter(catalog, [make_clip(1), make_clip(2), make_clip(3)])
    catalog.runs.finish("night", [done(one, manifest, accelerator_seconds=40.0, peak_memory_bytes=2**30), failed(two)])
    assert "mux       1 artifacts" in run("status").stdout
    listed = values("status")
    assert listed["batches"][0]["clips"]["done"] == 1
    assert listed["artifacts"] == {"mux": {"artifacts": 1, "size_bytes": manifest.size_bytes}}
    night = values("status", "night")
    assert (night["clips"]["failed"], night["accelerator_seconds"]) == (1, 40.0)
    mux = {"total": 3, "made": 1, "failed": 0, "left": 1, "accelerator_seconds": 40.0, "peak_memory_bytes": 2**30}
    assert night["stages"]["mux"].items() >= mux.items()
    assert night["stages"]["preview"]["failed"] == 1


@pytest.mark.slow
def test_library_and_commands_import_without_torch_or_database(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys, magi2.catalog, magi2.catalog.rebuild, magi2.catalog.verify, magi2.catalog.migrate\n"
        "assert 'torch' not in sys.modules, 'torch'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=tmp_path)
    code = "import sys, magi2.cli.catalog\nassert not {'sqlalchemy', 'alembic'} & set(sys.modules)\n"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=tmp_path)
