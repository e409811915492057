"""Nothing in a store or beside it can be read by the other users of a host."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from magi2.artifacts.address import open_store
from magi2.artifacts.local import LocalStore
from magi2.artifacts.manifest import ManifestDraft
from magi2.artifacts.recipe import Recipe
from magi2.catalog import open_catalog
from magi2.catalog.lock import _file_lock
from magi2.errors import ConfigError


@pytest.fixture(params=[0o022, 0o077, 0o000], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def fill(root: Path) -> None:
    """An artifact, a document, a catalog and a lock, as renders leave them."""
    store, recipe = LocalStore(root), Recipe(stage="encode", version=1, config={})
    with store.stage_folder(recipe.stage, recipe.key) as folder:
        (folder / "payload.bin").write_bytes(b"content")
        store.publish(ManifestDraft(recipe), {"payload.bin": folder / "payload.bin"})
    store.put_document("batches/a/batch.json", b"{}")
    open_catalog(f"sqlite:///{root}/catalog.sqlite").batches.get("a")
    with _file_lock(root / "locks" / "a.lock"):
        pass


def modes(root: Path) -> tuple[set[int], set[int]]:
    """Of all folders, and of all files."""
    found = [(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in (root, *root.rglob("*"))]
    return {mode for is_folder, mode in found if is_folder}, {mode for is_folder, mode in found if not is_folder}


def test_a_store_is_its_users_alone(tmp_path: Path, umask: int) -> None:
    fill(tmp_path / "new" / "store")
    assert modes(tmp_path / "new" / "store") == ({0o700}, {0o600})


def test_a_store_of_containers_is_group_0s(tmp_path: Path, umask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 50000)
    monkeypatch.setattr(os, "getgid", lambda: 0)
    fill(tmp_path / "store")
    assert modes(tmp_path / "store") == ({0o770}, {0o660})


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o750)
    fill(tmp_path / "store")
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o750
    assert modes(tmp_path / "store")[1] == {0o600}


def test_scratch_of_an_s3_store_is_this_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    open_store("s3://bucket?endpoint=http://127.0.0.1:9")
    own = tmp_path / f"magi2-{os.getuid()}"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (own, own / "s3")] == [0o700, 0o700]


@pytest.mark.parametrize("name", ["", "s3"])
def test_scratch_that_is_a_link_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    own, theirs = tmp_path / f"magi2-{os.getuid()}", tmp_path / "theirs"
    theirs.mkdir()
    own.parent.mkdir(exist_ok=True)
    if name:
        own.mkdir()
    (own / name if name else own).symlink_to(theirs)
    with pytest.raises(ConfigError, match="is a link or belongs to another user"):
        open_store("s3://bucket?endpoint=http://127.0.0.1:9")
