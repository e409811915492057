"""`magi2 report`: a folder to share, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from magi2.artifacts.local import LocalStore
from magi2.catalog import open_catalog
from magi2.catalog.rebuild import rebuild
from magi2.types import StageName
from tests.cli.cli_said import Magi2
from tests.report_samples import clip, rendered


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def test_a_batch_becomes_a_folder(magi2: Magi2, store: LocalStore, tmp_path: Path) -> None:
    plan = rendered(store, [clip(1), clip(2)])
    rebuild(store, open_catalog(f"sqlite:///{store.root}/catalog.sqlite"))
    said = magi2("report", plan.batch_id, "--out", "shared")
    assert (said.code, said.out, said.err) == (0, "shared/index.html: 2 clips\n", "")
    names = {path.relative_to(tmp_path / "shared").as_posix() for path in (tmp_path / "shared").rglob("*.*")}
    short = (clip(1).short_id, clip(2).short_id)
    files = {f"clips/{each}.mp4" for each in short} | {f"posters/{each}.jpg" for each in short}
    assert names == files | {"index.html", "report.json", "clips.csv"}
    assert json.loads(magi2("report", plan.batch_id, "--out", "shared", "--json").out)["missing"] == []


def test_a_batch_that_the_catalog_does_not_know_has_no_cost_and_says_so(magi2: Magi2, store: LocalStore) -> None:
    plan = rendered(store, [clip(1)])
    said = magi2("report", plan.batch_id, "--out", "shared", "--clips", "none")
    assert said.code == 0 and "no accelerator-seconds and no cost: the catalog does not know the batch" in said.err


def test_a_file_that_could_not_be_had_is_named(magi2: Magi2, store: LocalStore) -> None:
    plan = rendered(store, [clip(1)])
    (key,) = store.keys(StageName.MUX)
    store.remove(StageName.MUX, key)
    said = magi2("report", plan.batch_id, "--out", "shared")
    assert said.code == 0 and f"clip {clip(1).short_id}: its file could not be had" in said.err


def test_what_cannot_be_done_is_one_line_and_exit_code_two(magi2: Magi2, store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("")
    plan = rendered(store, [clip(1)])
    rebuild(store, open_catalog(f"sqlite:///{store.root}/catalog.sqlite"))
    cases = {
        ("f" * 16, "--out", "new"): f"batches/{'f' * 16}/batch.json is not in the store",
        (plan.batch_id, "--out", "taken"): "is not empty and holds no report",
        (plan.batch_id, "--out", "new", "--clips", "move"): "--clips is 'move', must be one of copy, link, none",
    }
    for arguments, message in cases.items():
        said = magi2("report", *arguments)
        assert (said.code, said.out) == (2, "") and message in said.error_lines[-1], said
