from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from magi2.artifacts import (
    LocalStore,
    Manifest,
    ManifestDraft,
    Recipe,
    TensorSpec,
    load_tensors,
    open_store,
    save_tensors,
)
from magi2.artifacts.address import canonical_address
from magi2.errors import AwayError, ConfigError, ContractError, CorruptedArtifactError, InfrastructureError

RECIPE = Recipe("preview", 1, seed=7)


def publish(store: LocalStore, content: bytes = b"abc") -> Manifest:
    with store.stage_folder("preview", RECIPE.key) as folder:
        (folder / "work").write_bytes(content)
        return store.publish(ManifestDraft(RECIPE), {"latents.bin": folder / "work"})


def failing(code: int) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), "some/file")

    return fail


def test_tensors_go_through_the_store_with_their_specs(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    latents = torch.randn(16, 2, 3, 4).bfloat16()
    with store.stage_folder("preview", RECIPE.key) as folder:
        path = folder / "latents.safetensors"
        specs = save_tensors(path, {"video": latents})
        made = store.publish(ManifestDraft(RECIPE), {"latents.safetensors": path})
    assert made.payloads["latents.safetensors"].tensors == specs == {"video": TensorSpec("bfloat16", (16, 2, 3, 4))}
    path = store.fetch("preview", made.key, "latents.safetensors")
    assert torch.equal(load_tensors(path, specs=specs)["video"], latents)


def test_time_comes_from_the_clock(tmp_path: Path) -> None:
    made = publish(LocalStore(tmp_path, clock=lambda: 86400.5))
    assert made.created_at == datetime(1970, 1, 2, 0, 0, 0, 500_000, tzinfo=UTC)


def test_full_disk_is_retryable_and_leaves_the_work_and_no_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path / "store")
    with store.stage_folder("preview", RECIPE.key) as folder:
        files = {"latents.bin": folder / "work", "more.bin": folder / "more"}
        for path in files.values():
            path.write_bytes(b"abc")
        with monkeypatch.context() as patch:
            patch.setattr("magi2.artifacts.local.write_durably", failing(errno.ENOSPC))
            with pytest.raises(InfrastructureError, match="No space left") as caught:
                store.publish(ManifestDraft(RECIPE), files)
        assert caught.value.retryable
        assert list(store.root.glob("artifacts/*/*/*/*")) == []
        made = store.publish(ManifestDraft(RECIPE), files)  # the same call again
    assert store.find("preview", RECIPE.key) == made


def test_failure_after_the_manifest_stands_keeps_the_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    link = os.link

    def link_and_die(source: Path, target: Path) -> None:
        link(source, target)
        if target.name == "manifest.json":
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", link_and_die)
    with pytest.raises(KeyboardInterrupt):
        publish(store)
    assert store.find("preview", RECIPE.key) is not None
    assert store.fetch("preview", RECIPE.key, "latents.bin").read_bytes() == b"abc"


def test_file_of_another_file_system_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def refuse(source: Path, target: Path) -> None:
        if target.name != "manifest.json":
            raise OSError(errno.EXDEV, "Invalid cross-device link", str(source))
        link(source, target)

    monkeypatch.setattr(os, "link", refuse)
    store = LocalStore(tmp_path)
    publish(store)
    assert store.fetch("preview", RECIPE.key, "latents.bin").read_bytes() == b"abc"


def test_key_folder_removed_in_between_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, times = os.link, []

    def remove_first(source: Path, target: Path) -> None:
        if not times:
            times.append(1)
            target.parent.rmdir()
        link(source, target)

    monkeypatch.setattr(os, "link", remove_first)
    store = LocalStore(tmp_path)
    publish(store)
    assert times
    assert store.find("preview", RECIPE.key) is not None


def test_symlink_is_neither_published_nor_accepted_as_a_payload(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    (tmp_path / "secret").write_bytes(b"abc")
    (tmp_path / "alias").symlink_to(tmp_path / "secret")
    with pytest.raises(ContractError, match="no regular file"):
        store.publish(ManifestDraft(RECIPE), {"latents.bin": tmp_path / "alias"})
    made = publish(store)
    stored = store.fetch("preview", made.key, "latents.bin")
    stored.unlink()
    stored.symlink_to(tmp_path / "secret")
    with pytest.raises(CorruptedArtifactError, match="missing"):
        store.find("preview", made.key)


def test_unreadable_store_is_an_infrastructure_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = LocalStore(tmp_path / "file" / "store")
    with pytest.raises(InfrastructureError, match="file"), store.stage_folder("preview", RECIPE.key):
        pass
    with pytest.raises(InfrastructureError):
        store.put_document("report.json", b"abc")


def test_self_test_says_that_hard_links_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    with pytest.raises(InfrastructureError, match="no hard links here") as caught:
        LocalStore(tmp_path).self_test()
    assert "file system" in str(caught.value)


def test_self_test_says_that_links_replace_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", shutil.copyfile)
    with pytest.raises(InfrastructureError, match="a link replaced a file"):
        LocalStore(tmp_path).self_test()


@pytest.mark.parametrize("form", ["file://{}", "{}", "file://localhost{}"])
def test_store_is_opened_by_url_or_path(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "clips"
    assert open_store(form.format(folder)).url == folder.as_uri()


def test_store_with_spaces_and_unicode_is_opened_by_its_url(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "my clips 夜 100%")
    made = publish(store)
    assert open_store(store.url).find("preview", RECIPE.key) == made


def test_relative_and_home_paths_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert open_store("clips").url == (tmp_path / "clips").as_uri()
    assert open_store("~/clips").url == (tmp_path / "home" / "clips").as_uri()


@pytest.mark.parametrize("url", ["", " ", "file://host/clips", "file://relative", "ftp://host/x", "http://host/x"])
def test_other_addresses_are_refused_with_a_hint(url: str) -> None:
    with pytest.raises(ConfigError, match="file:///"):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3:///prefix", "bucket's name is missing"),
        ("s3://clips?endpiont=http://host", "unknown option 'endpiont'"),
        ("s3://clips?endpoint=host:9000", "endpoint is not like"),
        ("s3://clips?endpoint=http://host/path", "endpoint is not like"),
        ("s3://clips?endpoint=http://key:hidden@host", "endpoint is not like"),
        ("s3://clips?endpoint=http://host?hidden", "endpoint is not like"),
        ("s3://clips?endpoint=http://host:99999", "endpoint is not like"),
        ("s3://clips?endpoint=http://host:0", "endpoint is not like"),
        ("s3://clips?endpoint=http://", "endpoint is not like"),
        ("s3://clips?public_endpoint=host", "public_endpoint is not like"),
        ("s3://clips?public_endpoint=ftp://host", "public_endpoint is not like"),
        ("s3://clips?public_endpoint=https://key:hidden@host", "public_endpoint is not like"),
        ("s3://clips?public_endpoint=https://host/hidden", "public_endpoint is not like"),
        ("s3://clips?public_endpoint=https://host%3B+script-src+*", "public_endpoint is not like"),
        ("s3://key:hidden@clips/prefix", "credentials do not belong"),
    ],
)
def test_malformed_bucket_address_is_refused_without_showing_secrets(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        open_store(url)
    assert "hidden" not in str(caught.value)


def test_bucket_address_is_kept() -> None:
    url = "s3://clips/night/?endpoint=http%3A%2F%2Fhost%3A9000&region=eu-1"
    assert open_store(url).url == url
    public = open_store(f"{url}&public_endpoint=https%3A%2F%2Fclips.example%2F")
    assert (public.url, public.link_origin) == (url, "https://clips.example"), "one store, whoever looks at it"
    assert canonical_address(f"{url}&public_endpoint=https://clips.example") == canonical_address(url)
    assert (
        open_store("s3://clips?endpoint=http://[::1]:9000").url
        == "s3://clips/?endpoint=http%3A%2F%2F%5B%3A%3A1%5D%3A9000"
    )
    assert open_store("s3://clips?public_endpoint=").link_origin is None
    assert open_store("s3://clips?public_endpoint=HTTPS://Host").link_origin == "https://Host"
    assert open_store("s3://clips").url == "s3://clips/?endpoint=https%3A%2F%2Fs3.amazonaws.com"


def test_root_that_is_gone_is_not_made_anew_and_is_used_again_when_it_is_back(tmp_path: Path) -> None:
    LocalStore(tmp_path / "store").put_document("a.json", b"{}")
    store = LocalStore(tmp_path / "store")
    assert store.get_document("a.json") == b"{}"
    store.root.rename(tmp_path / "unmounted")
    writes: list[Callable[[], object]] = [
        lambda: store.put_document("b.json", b"{}"),
        lambda: store.stage_folder("mux", "0" * 64).__enter__(),
    ]
    for write in writes:
        with pytest.raises(AwayError, match="was there and is gone"):
            write()
    assert store.get_document("a.json") is None and not store.root.exists()
    (tmp_path / "unmounted").rename(store.root)
    store.put_document("b.json", b"{}")
    assert sorted(path.name for path in (store.root / "documents").iterdir()) == ["a.json", "b.json"]
