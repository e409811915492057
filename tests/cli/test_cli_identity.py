"""Commands that write refuse a store that is not the catalog's; those that read say so and go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from magi2.artifacts import LocalStore, ManifestDraft, Recipe
from magi2.catalog import Catalog, NewBatch, PlannedClip, Run, RunState, open_catalog
from magi2.catalog.identity import DOCUMENT, require_match
from magi2.types import Clip, StageName
from tests.cli.cli_said import Magi2

PROFILE = "a" * 64
CLIP = Clip("a kite", 1, "1080p", PROFILE)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def catalog(magi2: Magi2, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """A catalog elsewhere, with one delivered clip of a store that is then taken away."""
    url = f"sqlite:///{tmp_path}/elsewhere/catalog.sqlite"
    monkeypatch.setenv("MAGI2_CATALOG", url)
    recipe = Recipe(stage="mux", version=1, seed=1)
    with store.stage_folder("mux", recipe.key) as folder:
        (folder / "clip.mp4").write_bytes(b"picture")
        manifest = store.publish(ManifestDraft(recipe=recipe), {"clip.mp4": folder / "clip.mp4"})
    catalog = open_catalog(url)
    batch = NewBatch(batch_id="night", name="Night", source="night.jsonl", clips_total=1)
    catalog.batches.create(batch, {PROFILE: {}})
    catalog.clips.add("night", [PlannedClip(CLIP, 0)])
    catalog.artifacts.index([manifest])
    run = Run(clip_id=CLIP.clip_id, stage=StageName.MUX, state=RunState.MADE, artifact_key=manifest.key)
    catalog.runs.finish("night", [run])
    require_match(store, catalog)
    store.root.rename(tmp_path / "unmounted")
    (tmp_path / "batch.jsonl").write_text('{"prompt": "a kite"}\n')
    return catalog


WRITING = {
    "render": ("render", "-p", "x", "--profile", "tiny"),
    "render on ranks": ("render", "-p", "x", "--profile", "tiny", "--layout", "sp2"),
    "stage": ("stage", "enhance", "-p", "x", "--profile", "tiny"),
    "plan": ("plan", "batch.jsonl", "--profile", "tiny"),
    "gc": ("gc", "--delete"),
    "gc, dry": ("gc",),
    "rerun": ("rerun", "night"),
    "rebuild": ("catalog", "rebuild"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("catalog")
@pytest.mark.parametrize("name", WRITING)
def test_command_that_writes_refuses_a_store_that_is_not_mounted(magi2: Magi2, store: LocalStore, name: str) -> None:
    said = magi2(*WRITING[name])
    assert said.code == 2, said
    assert "the store misses 1 of the 1 delivered clips that the catalog knows" in said.err
    assert not store.root.exists()


@pytest.mark.usefixtures("catalog")
def test_commands_that_read_say_it_and_go_on(magi2: Magi2) -> None:
    said = magi2("status", "--json")
    assert said.code == 0, said
    assert json.loads(said.out)["batches"][0]["name"] == "Night"
    assert said.err.startswith("warning: the store is empty and the catalog is not")
    assert "the store is empty and the catalog is not" in magi2("verify").out


def test_force_on_the_command_line_takes_the_store_as_it_is(magi2: Magi2, catalog: Catalog, store: LocalStore) -> None:
    said = magi2("catalog", "rebuild", "--force")
    assert said.code == 0, said
    assert "taken out: 1 artifacts; kept without documents: 1 batches" in said.out
    assert catalog.batches.get("night") is not None
    assert store.get_document(DOCUMENT) is not None
    assert magi2("plan", "batch.jsonl", "--profile", "tiny").code == 0


def test_plan_is_a_dry_run_that_writes_nothing_to_the_store(magi2: Magi2, store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "batch.jsonl").write_text('{"prompt": "a kite"}\n')
    assert magi2("plan", "batch.jsonl", "--profile", "tiny").code == 0
    assert store.is_empty()
