"""The tiny checkpoint: repeatable, complete, never over somebody's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from magi2.checkpoints.layout import COMPONENTS, CheckpointFolder
from magi2.checkpoints.tiny import make_tiny
from magi2.config.load import load_profile
from magi2.errors import CheckpointError
from tests.render_helpers import CONFIGS, stored_files

ARCHITECTURES = load_profile("tiny", CONFIGS).architectures


def test_one_seed_gives_the_same_bytes_and_another_others(tiny_checkpoint: Path, tmp_path: Path) -> None:
    assert make_tiny(tmp_path / "again", ARCHITECTURES, seed=1) == list(COMPONENTS)
    make_tiny(tmp_path / "other", ARCHITECTURES, seed=2)
    first, again, other = (
        {name: digest for name, digest in stored_files(folder).items() if not name.endswith("fingerprint.json")}
        for folder in (tiny_checkpoint, tmp_path / "again", tmp_path / "other")
    )
    assert again == first
    assert other.keys() == first.keys()
    weights = [name for name in first if name.endswith((".safetensors", ".pth", ".ckpt"))]
    assert len(weights) >= 6 and all(other[name] != first[name] for name in weights)


def test_it_is_small_and_has_the_published_layout(tiny_checkpoint: Path) -> None:
    files = [path for path in tiny_checkpoint.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 50_000_000
    folders = {component.folder for component in COMPONENTS.values()}
    assert {path.name for path in tiny_checkpoint.iterdir() if path.is_dir()} == folders
    for component in ("preview", "refiner", "text_encoder"):
        assert len(list(CheckpointFolder(tiny_checkpoint).folder(component).glob("*.safetensors"))) > 1
        assert (tiny_checkpoint / component / "model.safetensors.index.json").is_file()


def test_a_finished_checkpoint_is_left_as_it_is(tmp_path: Path) -> None:
    make_tiny(tmp_path / "tiny", ARCHITECTURES, seed=3)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "tiny").rglob("*")}
    make_tiny(tmp_path / "tiny", ARCHITECTURES, seed=3)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "tiny").rglob("*")} == times
    with pytest.raises(CheckpointError, match="holds no tiny checkpoint of seed 4"):
        make_tiny(tmp_path / "tiny", ARCHITECTURES, seed=4)


def test_a_folder_or_file_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    (tmp_path / "file").write_text("keep")
    for name in ("mine", "file"):
        with pytest.raises(CheckpointError, match=name):
            make_tiny(tmp_path / name, ARCHITECTURES, seed=1)
    assert stored_files(tmp_path).keys() == {"mine/notes.txt", "file"}


def test_each_component_has_a_fingerprint_of_its_own(tiny_checkpoint: Path) -> None:
    weights = CheckpointFolder(tiny_checkpoint)
    assert len(set(weights.values())) == len(weights) == 6
    assert dict(CheckpointFolder(tiny_checkpoint)) == dict(weights)
