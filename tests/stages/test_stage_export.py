"""A finished clip's files in a folder of the user's: whole, named by the clip, and replaced at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from magi2.artifacts import LocalStore, ManifestDraft, Recipe
from magi2.errors import InputError
from magi2.recipes.result import StageResult
from magi2.stages.render import Outcome, export
from magi2.types import CLIP, CONTACT_SHEET, POSTER, Clip, StageName

NAMES = (CLIP, POSTER, CONTACT_SHEET)
A_CLIP = Clip("a kite", 1, "tiny", "0" * 64)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def outcome(store: LocalStore) -> Outcome:
    recipe = Recipe(StageName.MUX, 1, seed=1)
    with store.stage_folder(StageName.MUX, recipe.key) as folder:
        for name in NAMES:
            (folder / name).write_text(f"content of {name}")
        store.publish(ManifestDraft(recipe), {name: folder / name for name in NAMES})
    return Outcome(A_CLIP, [StageResult(StageName.MUX, A_CLIP, "made", 1.0, recipe.key)])


def test_files_are_copied_whole_and_replace_earlier_ones(store: LocalStore, outcome: Outcome, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    for _ in range(2):
        files = export(store, outcome, out)
        assert {name: path.read_text() for name, path in files.items()} == {n: f"content of {n}" for n in NAMES}
        assert sorted(out.iterdir()) == sorted(files.values())
        files[CLIP].write_text("an earlier clip")


def test_a_name_that_is_taken_by_a_folder_is_the_users_to_clear(
    store: LocalStore, outcome: Outcome, tmp_path: Path
) -> None:
    taken = tmp_path / f"{A_CLIP.short_id}.mp4"
    taken.mkdir()
    with pytest.raises(InputError, match=f"cannot write {taken}: it is a folder"):
        export(store, outcome, tmp_path)
    assert not list(tmp_path.glob(".*.partial"))


def test_a_folder_that_cannot_be_made_is_the_users_mistake(store: LocalStore, outcome: Outcome, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        export(store, outcome, tmp_path / "file" / "out")
