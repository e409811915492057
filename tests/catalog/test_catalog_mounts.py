"""A SQLite catalog that other hosts may open is told of by the name of its file system."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from magi2.catalog import mounts, open_catalog
from magi2.catalog.mounts import network_file_system


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that stands for the kernel's list of mounts."""
    monkeypatch.setattr(mounts, "MOUNTS", tmp_path / "mountinfo")
    return tmp_path / "mountinfo"


def listed(*points: tuple[str, str]) -> str:
    lines = (
        f"{n} 1 0:{n} /inner {point} rw,noatime shared:1 - {kind} source rw" for n, (point, kind) in enumerate(points)
    )
    return "\n".join([*lines, ""])


SHARED = (*("nfs", "nfs4", "cifs", "smb2", "smb3", "fuse.sshfs", "fuse.glusterfs", "9p", "lustre", "gpfs", "ceph"),)


@pytest.mark.parametrize("kind", SHARED)
def test_network_file_systems_are_known_by_name(mount: Path, kind: str) -> None:
    mount.write_text(listed(("/", "ext4"), ("/clips", kind)))
    assert network_file_system(Path("/clips/not/there/catalog.sqlite")) == kind
    assert network_file_system(Path("/clipsandmore/catalog.sqlite")) is None


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "fuseblk", "nfsd", "unknown"])
def test_file_systems_of_this_host_are_not_warned_of(mount: Path, kind: str) -> None:
    mount.write_text(listed(("/", "nfs4"), ("/clips", kind)))
    assert network_file_system(Path("/clips/catalog.sqlite")) is None


def test_innermost_and_latest_mount_counts(mount: Path) -> None:
    mount.write_text(listed(("/a\\040b", "ext4"), ("/a\\040b/deep", "ceph"), ("/", "nfs"), ("/a\\040b", "cifs")))
    assert network_file_system(Path("/a b/catalog.sqlite")) == "cifs"
    assert network_file_system(Path("/a b/deep/catalog.sqlite")) == "ceph"
    assert network_file_system(Path("/other")) == "nfs"


def test_link_to_a_network_file_system_is_followed(mount: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "share")
    mount.write_text(listed(("/", "ext4"), (str(tmp_path / "share"), "nfs4")))
    assert network_file_system(tmp_path / "link" / "catalog.sqlite") == "nfs4"


def test_host_that_lists_no_mounts_is_not_warned(mount: Path) -> None:
    assert network_file_system(Path("/clips/catalog.sqlite")) is None


def test_whoever_opens_such_a_catalog_is_warned(mount: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mount.write_text(listed((str(tmp_path), "nfs4")))
    with caplog.at_level(logging.WARNING):
        open_catalog(f"sqlite:///{tmp_path}/catalog.sqlite").close()
    assert f"catalog {tmp_path}/catalog.sqlite lies on a network file system (nfs4)" in caplog.text
    assert "MAGI2_CATALOG=postgresql://" in caplog.text
