"""A folder as a target: create-only, never half a file, and nothing reached through links."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from pathlib import Path

import pytest

from magi2.delivery import places
from magi2.delivery.places import NO_FILE, FolderPlace
from magi2.errors import InfrastructureError, InputError

CONTENT = b"a clip"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.mp4"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "studio"
    folder.mkdir()
    return folder


def test_a_file_is_put_once_and_never_replaced(root: Path, source: Path) -> None:
    place = FolderPlace(root)
    assert place.digest("monday/a.mp4") is None
    assert place.put(source, "monday/a.mp4") and place.digest("monday/a.mp4") == DIGEST
    source.write_bytes(b"another")
    assert not place.put(source, "monday/a.mp4")
    assert (root / "monday" / "a.mp4").read_bytes() == CONTENT and os.listdir(root / "monday") == ["a.mp4"]


def test_names_that_differ_in_case_alone_are_one(root: Path, source: Path) -> None:
    (root / "A.MP4").write_bytes(CONTENT)
    assert FolderPlace(root).digest("a.mp4") == DIGEST


def test_a_copy_that_fails_leaves_nothing(root: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(content: object, target: object, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(places.shutil, "copyfileobj", full)
    with pytest.raises(InfrastructureError, match="No space left"):
        FolderPlace(root).put(source, "a.mp4")
    assert os.listdir(root) == []


def test_a_folder_that_is_not_there_may_come_yet(tmp_path: Path, source: Path) -> None:
    with pytest.raises(InfrastructureError):
        FolderPlace(tmp_path / "unmounted").put(source, "a.mp4")
    assert not (tmp_path / "unmounted").exists()


def test_no_link_leads_out_of_the_folder(root: Path, source: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "linked").symlink_to(outside)
    (root / "clip.mp4").symlink_to(outside / "clip.mp4")
    place = FolderPlace(root)
    with pytest.raises(InputError, match="linked is a link"):
        place.put(source, "linked/a.mp4")
    with pytest.raises(InputError, match="linked is a link"):
        place.digest("linked/a.mp4")
    assert place.digest("clip.mp4") == NO_FILE and not place.put(source, "clip.mp4")
    assert os.listdir(outside) == []


def test_a_file_where_a_folder_should_be_is_told(root: Path, source: Path) -> None:
    (root / "monday").write_bytes(b"")
    with pytest.raises(InputError, match="no folder"):
        FolderPlace(root).put(source, "monday/a.mp4")


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP])
def test_a_file_system_without_links_is_served_too(
    root: Path, source: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_links(*names: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(places.os, "link", no_links)
    place = FolderPlace(root)
    assert place.put(source, "a.mp4") and not place.put(source, "a.mp4")
    assert os.listdir(root) == ["a.mp4"] and place.digest("a.mp4") == DIGEST


def test_what_killed_deliveries_left_is_swept_and_what_is_at_work_is_not(root: Path, source: Path) -> None:
    old, young, foreign = root / ".magi2-1.partial", root / ".magi2-2.partial", root / ".other.partial"
    for path in (old, young, foreign):
        path.write_bytes(b"half")
    long_ago = time.time() - 2 * 86_400
    os.utime(old, (long_ago, long_ago))
    os.utime(foreign, (long_ago, long_ago))
    FolderPlace(root).put(source, "a.mp4")
    assert sorted(os.listdir(root)) == [young.name, foreign.name, "a.mp4"]
