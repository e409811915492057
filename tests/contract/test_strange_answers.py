"""One strange answer to a read is no damage: nothing is condemned, removed or made anew for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from minio.credentials import StaticProvider

from magi2.artifacts.local import LocalStore
from magi2.artifacts.manifest import Manifest, ManifestDraft
from magi2.artifacts.recipe import Recipe
from magi2.artifacts.s3 import S3Store
from magi2.batches.documents import find_document
from magi2.batches.images import image_name, read_image
from magi2.batches.schema import FailureDocument
from magi2.errors import CorruptedArtifactError
from magi2.recipes.captions import fetch_or_condemn
from tests.contract.tampering_proxy import Proxy, tampering_proxy

STAGE = "preview"
IMAGE = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # of b"abc"
READS = {
    "manifest, found": ("manifest.json", lambda store: store.find(STAGE, recipe().key).key),
    "manifest, fetched": ("manifest.json", lambda store: store.fetch(STAGE, recipe().key, "a.bin").read_bytes()),
    "payload": (".bin", lambda store: fetch_or_condemn(store, STAGE, recipe().key, "a.bin").read_bytes()),
    "document": ("f.json", lambda store: find_document(store, "f.json", FailureDocument).error),
    "bytes": ("f.json", lambda store: store.get_document("f.json")),
    "image": (IMAGE, lambda store: read_image(store, IMAGE)),
}


def recipe(seed: int = 7) -> Recipe:
    return Recipe(STAGE, 1, seed=seed)


def publish(store: LocalStore | S3Store, content: bytes, made: Recipe) -> Manifest:
    with store.stage_folder(STAGE, made.key) as folder:
        (folder / "a.bin").write_bytes(content)
        return store.publish(ManifestDraft(made), {"a.bin": folder / "a.bin"})


def fill(store: LocalStore | S3Store) -> None:
    publish(store, b"abc", recipe())
    store.put_document("f.json", b'{"error_code": "a", "error": "b"}')
    store.put_document(image_name(IMAGE), b"abc")


@pytest.fixture
def proxy(s3_server: Any) -> Iterator[Proxy]:
    with tampering_proxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def store(proxy: Proxy, s3_server: Any, tmp_path: Path) -> S3Store:
    store = S3Store(
        s3_server.bucket,
        endpoint=proxy.endpoint,
        credentials=StaticProvider(s3_server.access_key, s3_server.secret_key),
        scratch=tmp_path / "scratch",
        prefix=f"strange/{tmp_path.name}",
    )
    fill(store)
    proxy.asked.clear()
    return store


@pytest.mark.parametrize("read", READS)
def test_a_page_instead_of_an_object_is_asked_for_again(store: S3Store, proxy: Proxy, read: str) -> None:
    end, look = READS[read]
    expected = look(store)
    proxy.answer_once("GET", end)
    assert look(store) == expected
    assert (proxy.deleted(), list(store.condemned())) == ([], [])


def test_a_cache_that_keeps_the_page_is_passed_by(store: S3Store, proxy: Proxy) -> None:
    path = f"artifacts/{STAGE}/{recipe().key[:2]}/{recipe().key}/manifest.json"
    proxy.answers = lambda method, asked: b"<html>cached</html>" if method == "GET" and asked.endswith(path) else None
    found = store.find(STAGE, recipe().key)
    assert found is not None and found.key == recipe().key


def test_a_page_after_publication_leaves_the_payloads(store: S3Store, proxy: Proxy) -> None:
    proxy.answers = lambda method, path: b"<html>" if method == "GET" and path.endswith("manifest.json") else None
    made = publish(store, b"other", recipe(seed=8))
    proxy.answers = lambda method, path: None
    assert store.find(STAGE, made.key) == made


def test_what_came_twice_instead_of_a_manifest_is_said(store: S3Store, proxy: Proxy) -> None:
    page = b"<html>maintenance</html>"
    proxy.answers = lambda method, path: page if method == "GET" and "manifest.json" in path else None
    with pytest.raises(CorruptedArtifactError, match=r"text/html, 24 bytes, begins with '<html>maintenance</html>'"):
        store.find(STAGE, recipe().key)


@pytest.mark.parametrize("read", [name for name in READS if name != "payload"])
def test_one_strange_read_of_a_disk_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str) -> None:
    store = LocalStore(tmp_path / "store")
    fill(store)
    end, look = READS[read]
    expected = look(store)
    strange = [b"\0" * 24]
    read_bytes = Path.read_bytes

    def read_once(path: Path) -> bytes:
        return strange.pop() if strange and path.name.endswith(end) else read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read_once)
    if read == "bytes":
        assert store.get_document("f.json") == b"\0" * 24  # what it should be is not known here
    assert look(store) == expected
    assert not strange and list(store.condemned()) == []
