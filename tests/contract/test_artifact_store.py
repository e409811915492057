"""What every artifact store promises. A new store joins by a `StoreLab` that can reach beneath it."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from io import BytesIO
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, Protocol
from urllib.request import urlopen

import pytest

from magi2.artifacts import ArtifactStore, LocalStore, Manifest, ManifestDraft, Recipe, open_store
from magi2.errors import ContractError, CorruptedArtifactError, InputError

STAGE = "preview"


class StoreLab(Protocol):
    """A store under test and raw access to what it keeps, by path relative to the store."""

    def open(self) -> ArtifactStore: ...

    def names(self, prefix: str) -> list[str]: ...

    def read(self, name: str) -> bytes: ...

    def write(self, name: str, content: bytes) -> None: ...

    def delete(self, name: str) -> None: ...


class LocalLab:
    def __init__(self, root: Path) -> None:
        self.root = root

    def open(self) -> ArtifactStore:
        return LocalStore(self.root)

    def names(self, prefix: str) -> list[str]:
        paths = (path for path in self.root.rglob("*") if path.is_file())
        return sorted(name for path in paths if (name := path.relative_to(self.root).as_posix()).startswith(prefix))

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_bytes(content)

    def delete(self, name: str) -> None:
        (self.root / name).unlink()


class S3Lab:
    """A prefix of its own in the server's bucket."""

    def __init__(self, server: Any, scratch: Path) -> None:
        self.bucket, self.endpoint, self.scratch = server.bucket, server.endpoint, scratch
        self.prefix = f"lab/{secrets.token_hex(8)}/"
        self.client = server.client()

    def open(self) -> ArtifactStore:
        return open_store(f"s3://{self.bucket}/{self.prefix}?endpoint={self.endpoint}", scratch=self.scratch)

    def names(self, prefix: str) -> list[str]:
        items = self.client.list_objects(self.bucket, self.prefix + prefix, recursive=True)
        return sorted(item.object_name.removeprefix(self.prefix) for item in items)

    def read(self, name: str) -> bytes:
        response = self.client.get_object(self.bucket, self.prefix + name)
        try:
            return bytes(response.read())
        finally:
            response.close()
            response.release_conn()

    def write(self, name: str, content: bytes) -> None:
        self.client.put_object(self.bucket, self.prefix + name, BytesIO(content), len(content))

    def delete(self, name: str) -> None:
        self.client.remove_object(self.bucket, self.prefix + name)


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.servers)])
def lab(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreLab:
    if request.param == "local":
        return LocalLab(tmp_path / "store")
    server = request.getfixturevalue("s3_server")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    return S3Lab(server, tmp_path / "scratch")


@pytest.fixture
def store(lab: StoreLab) -> ArtifactStore:
    return lab.open()


def recipe(seed: int = 7, **changes: Any) -> Recipe:
    return Recipe(**{"stage": STAGE, "version": 1, "config": {"steps": 8}, "seed": seed, **changes})


def publish(store: ArtifactStore, contents: dict[str, bytes], made: Recipe | None = None, **draft: Any) -> Manifest:
    made = made or recipe()
    with store.stage_folder(made.stage, made.key) as folder:
        files = {name: folder / f"work-{name}" for name in contents}
        for name, content in contents.items():
            files[name].write_bytes(content)
        return store.publish(ManifestDraft(recipe=made, **draft), files)


def payload_path(manifest: Manifest, name: str) -> str:
    return f"{folder_of(manifest.recipe)}/{manifest.payloads[name].file}"


def folder_of(made: Recipe) -> str:
    return f"artifacts/{made.stage}/{made.key[:2]}/{made.key}"


def test_published_artifact_is_found_and_read_back(lab: StoreLab, store: ArtifactStore) -> None:
    published = publish(store, {"clip.mp4": b"picture", "poster.jpg": b"still"}, device="cpu", timings={"denoise": 2.0})
    other = lab.open()
    assert other.find(STAGE, recipe().key) == published
    assert other.fetch(STAGE, recipe().key, "clip.mp4").read_bytes() == b"picture"
    assert other.fetch(STAGE, recipe().key, "poster.jpg").suffix == ".jpg"
    assert published.payloads["clip.mp4"].sha256 == hashlib.sha256(b"picture").hexdigest()
    assert published.size_bytes == len(b"picture") + len(b"still")


def test_layout_is_stage_prefix_key_with_a_manifest(lab: StoreLab, store: ArtifactStore) -> None:
    published = publish(store, {"latents.bin": b"abc"})
    assert lab.names("artifacts/") == sorted(
        [f"{folder_of(recipe())}/manifest.json", payload_path(published, "latents.bin")]
    )


def test_absent_artifact_is_none_and_cannot_be_fetched(store: ArtifactStore) -> None:
    assert store.find(STAGE, recipe().key) is None
    assert list(store.keys(STAGE)) == []
    with pytest.raises(CorruptedArtifactError, match="no such artifact"):
        store.fetch(STAGE, recipe().key, "clip.mp4")


def test_unknown_payload_error_lists_the_payloads_there_are(store: ArtifactStore) -> None:
    publish(store, {"clip.mp4": b"picture"})
    with pytest.raises(ContractError, match=r"no payload 'clip.mov'.*clip.mp4"):
        store.fetch(STAGE, recipe().key, "clip.mov")


@pytest.mark.parametrize(
    ("name", "content_type"),
    [("clip.mp4", "video/mp4"), ("poster.jpg", "image/jpeg"), ("small.webp", "image/webp")],
)
def test_link_leads_to_the_payload_without_credentials(store: ArtifactStore, name: str, content_type: str) -> None:
    publish(store, {name: b"picture"})
    with urlopen(store.link(STAGE, recipe().key, name, expires=timedelta(minutes=5)), timeout=30) as response:
        assert response.read() == b"picture"
        assert response.headers["Content-Type"] == content_type


def test_link_to_what_is_not_there_is_refused_as_fetching_it_is(lab: StoreLab, store: ArtifactStore) -> None:
    expires = timedelta(minutes=5)
    with pytest.raises(CorruptedArtifactError, match="no such artifact"):
        store.link(STAGE, recipe().key, "clip.mp4", expires=expires)
    published = publish(store, {"clip.mp4": b"picture"})
    with pytest.raises(ContractError, match=r"no payload 'clip.mov'.*clip.mp4"):
        store.link(STAGE, recipe().key, "clip.mov", expires=expires)
    with pytest.raises(InputError):
        store.link(STAGE, "../../etc", "clip.mp4", expires=expires)
    lab.delete(payload_path(published, "clip.mp4"))
    with pytest.raises(CorruptedArtifactError, match="missing"):
        store.link(STAGE, recipe().key, "clip.mp4", expires=expires)


def test_link_asks_for_the_manifest_and_one_size_whatever_else_the_artifact_has(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = publish(store, {"clip.mp4": b"picture", "poster.jpg": b"still", "probe.json": b"{}"})
    asked: list[str] = []
    for name in ("_read", "_size"):
        ask = getattr(type(store), name)
        monkeypatch.setattr(type(store), name, lambda self, blob, ask=ask: asked.append(blob) or ask(self, blob))
    store.link(STAGE, recipe().key, "poster.jpg", expires=timedelta(minutes=5))
    poster = published.payloads["poster.jpg"].file
    assert [PurePosixPath(blob).name for blob in asked] == ["manifest.json", poster]


def test_payload_is_read_by_parts_without_a_local_copy(lab: StoreLab, store: ArtifactStore) -> None:
    content = bytes(range(256)) * 8
    published = publish(store, {"clip.mp4": content, "empty.bin": b""})
    payload = store.payload(STAGE, recipe().key, "clip.mp4")
    assert payload == published.payloads["clip.mp4"]
    for start, stop in ((0, len(content)), (0, 1), (100, 300), (2047, 2048), (7, 7)):
        assert store.read(STAGE, recipe().key, payload, start, stop) == content[start:stop]
    assert store.read(STAGE, recipe().key, store.payload(STAGE, recipe().key, "empty.bin"), 0, 0) == b""
    for start, stop in ((-1, 5), (5, 4), (0, 2049), (2048, 2049)):
        with pytest.raises(InputError, match=f"bytes {start} to {stop} of 2048"):
            store.read(STAGE, recipe().key, payload, start, stop)


def test_part_of_what_is_not_there_is_refused_as_fetching_it_is(lab: StoreLab, store: ArtifactStore) -> None:
    with pytest.raises(CorruptedArtifactError, match="no such artifact"):
        store.payload(STAGE, recipe().key, "clip.mp4")
    published = publish(store, {"clip.mp4": b"picture"})
    with pytest.raises(ContractError, match=r"no payload 'clip.mov'.*clip.mp4"):
        store.payload(STAGE, recipe().key, "clip.mov")
    payload, place = published.payloads["clip.mp4"], payload_path(published, "clip.mp4")
    lab.write(place, b"pict")
    with pytest.raises(CorruptedArtifactError, match="has 4 bytes"):
        store.payload(STAGE, recipe().key, "clip.mp4")
    with pytest.raises(CorruptedArtifactError, match="bytes 2 to 7 are 2 bytes"):
        store.read(STAGE, recipe().key, payload, 2, 7)
    lab.write(place, b"pixture")
    with pytest.raises(CorruptedArtifactError, match="SHA-256"):
        store.read(STAGE, recipe().key, payload, 0, 7)
    assert store.read(STAGE, recipe().key, payload, 0, 2) == b"pi", "of a part nobody knows the digest"
    lab.delete(place)
    with pytest.raises(CorruptedArtifactError, match="removed while being read"):
        store.read(STAGE, recipe().key, payload, 0, 7)


def test_stage_folder_is_private_empty_and_gone_afterwards(store: ArtifactStore) -> None:
    key = recipe().key
    with store.stage_folder(STAGE, key) as first, store.stage_folder(STAGE, key) as second:
        assert first != second
        assert list(first.iterdir()) == []
        (first / "left.bin").write_bytes(b"left")
    assert not first.exists()
    assert not second.exists()


def test_stage_folder_is_gone_when_the_stage_fails(store: ArtifactStore) -> None:
    with pytest.raises(RuntimeError), store.stage_folder(STAGE, recipe().key) as folder:
        raise RuntimeError("denoising failed")
    assert not folder.exists()


def test_given_files_are_gone_after_publishing(store: ArtifactStore) -> None:
    with store.stage_folder(STAGE, recipe().key) as folder:
        path = folder / "latents.bin"
        path.write_bytes(b"abc")
        store.publish(ManifestDraft(recipe=recipe()), {"latents.bin": path})
        assert not path.exists()


def test_missing_file_publishes_nothing_and_leaves_the_others(
    lab: StoreLab, store: ArtifactStore, tmp_path: Path
) -> None:
    present = tmp_path / "present.bin"
    present.write_bytes(b"abc")
    with pytest.raises(ContractError, match=r"absent\.bin"):
        store.publish(ManifestDraft(recipe=recipe()), {"a.bin": present, "b.bin": tmp_path / "absent.bin"})
    assert present.read_bytes() == b"abc"
    assert lab.names("artifacts/") == []


def test_file_from_elsewhere_is_published_too(store: ArtifactStore, tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.bin"
    path.write_bytes(b"abc")
    store.publish(ManifestDraft(recipe=recipe()), {"latents.bin": path})
    assert store.fetch(STAGE, recipe().key, "latents.bin").read_bytes() == b"abc"


def test_artifact_without_payloads_is_refused(store: ArtifactStore) -> None:
    with pytest.raises(ContractError, match="at least one payload"):
        store.publish(ManifestDraft(recipe=recipe()), {})


def test_broken_tensor_file_is_refused_before_publishing(lab: StoreLab, store: ArtifactStore) -> None:
    with pytest.raises(ContractError, match="safetensors"):
        publish(store, {"latents.safetensors": b"not tensors"})
    assert lab.names("artifacts/") == []


def test_second_publisher_gets_the_first_manifest_and_leaves_no_files(lab: StoreLab, store: ArtifactStore) -> None:
    first = publish(store, {"latents.bin": b"first"}, host="one")
    before = lab.names("artifacts/")
    second = publish(lab.open(), {"latents.bin": b"second"}, host="two")
    assert second == first
    assert second.host == "one"
    assert lab.names("artifacts/") == before
    assert store.fetch(STAGE, recipe().key, "latents.bin").read_bytes() == b"first"


def test_eight_publishers_at_once_give_one_winner_and_equal_manifests(lab: StoreLab) -> None:
    barrier = threading.Barrier(8)

    def work(number: int) -> Manifest:
        store = lab.open()
        barrier.wait()
        return publish(store, {"latents.bin": b"%d" % number * 1000}, host=str(number))

    with ThreadPoolExecutor(8) as pool:
        manifests = list(pool.map(work, range(8)))
    assert all(manifest == manifests[0] for manifest in manifests)
    assert len(lab.names("artifacts/")) == 2
    content = lab.open().fetch(STAGE, recipe().key, "latents.bin").read_bytes()
    assert content == manifests[0].host.encode() * 1000


def test_publishers_and_removers_at_once_leave_a_complete_artifact_or_none(lab: StoreLab) -> None:
    def churn(number: int) -> None:
        store = lab.open()
        for _ in range(10):
            publish(store, {"latents.bin": b"%d" % number})
            store.remove(STAGE, recipe().key)
            store.find(STAGE, recipe().key)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(churn, range(4)))
    store = lab.open()
    if store.find(STAGE, recipe().key) is not None:
        store.fetch(STAGE, recipe().key, "latents.bin")
    publish(store, {"latents.bin": b"after"})
    assert store.find(STAGE, recipe().key) is not None


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b""])
def test_payload_of_another_size_is_corrupted_when_found(
    lab: StoreLab, store: ArtifactStore, change: Callable[[bytes], bytes]
) -> None:
    path = payload_path(publish(store, {"latents.bin": b"abcdef"}), "latents.bin")
    lab.write(path, change(lab.read(path)))
    with pytest.raises(CorruptedArtifactError, match=r"latents.*bytes, the manifest says 6"):
        lab.open().find(STAGE, recipe().key)


def test_flipped_byte_is_found_when_read_and_not_before(lab: StoreLab, store: ArtifactStore) -> None:
    path = payload_path(publish(store, {"latents.bin": b"abcdef"}), "latents.bin")
    lab.write(path, b"abcdeg")
    other = lab.open()
    assert other.find(STAGE, recipe().key) is not None  # sizes only: finding must stay cheap
    with pytest.raises(CorruptedArtifactError, match="SHA-256"):
        other.fetch(STAGE, recipe().key, "latents.bin")


def test_byte_flipped_between_two_reads_is_found(lab: StoreLab, store: ArtifactStore) -> None:
    path = payload_path(publish(store, {"latents.bin": b"abcdef"}), "latents.bin")
    assert lab.open().fetch(STAGE, recipe().key, "latents.bin").read_bytes() == b"abcdef"
    lab.write(path, b"abcdeg")
    with pytest.raises(CorruptedArtifactError):
        lab.open().fetch(STAGE, recipe().key, "latents.bin")


def test_missing_payload_is_corrupted(lab: StoreLab, store: ArtifactStore) -> None:
    lab.delete(payload_path(publish(store, {"latents.bin": b"abc", "more.bin": b"x"}), "more.bin"))
    with pytest.raises(CorruptedArtifactError, match=r"more.*missing"):
        lab.open().find(STAGE, recipe().key)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b"[1]", b'{"format": 1}'])
def test_unreadable_manifest_is_corrupted_and_named(lab: StoreLab, store: ArtifactStore, content: bytes) -> None:
    publish(store, {"latents.bin": b"abc"})
    lab.write(f"{folder_of(recipe())}/manifest.json", content)
    with pytest.raises(CorruptedArtifactError, match=r"manifest\.json"):
        lab.open().find(STAGE, recipe().key)


def test_manifest_of_another_key_is_corrupted(lab: StoreLab, store: ArtifactStore) -> None:
    publish(store, {"latents.bin": b"abc"})
    stolen = lab.read(f"{folder_of(recipe())}/manifest.json")
    lab.write(f"{folder_of(recipe(seed=8))}/manifest.json", stolen)
    with pytest.raises(CorruptedArtifactError, match="is the manifest of"):
        store.find(STAGE, recipe(seed=8).key)


def test_corrupted_artifact_is_removed_and_made_anew(lab: StoreLab, store: ArtifactStore) -> None:
    lab.delete(payload_path(publish(store, {"latents.bin": b"abc"}), "latents.bin"))
    with pytest.raises(CorruptedArtifactError):
        publish(store, {"latents.bin": b"new"})  # never replaced behind the reader's back
    assert store.remove(STAGE, recipe().key)
    publish(store, {"latents.bin": b"new"})
    assert store.fetch(STAGE, recipe().key, "latents.bin").read_bytes() == b"new"


def test_artifact_with_an_unreadable_manifest_can_be_removed(lab: StoreLab, store: ArtifactStore) -> None:
    publish(store, {"latents.bin": b"abc"})
    lab.write(f"{folder_of(recipe())}/manifest.json", b"garbage")
    assert store.remove(STAGE, recipe().key)
    assert store.find(STAGE, recipe().key) is None
    store.sweep(older_than_hours=0)
    assert lab.names("artifacts/") == []


def quarantined(lab: StoreLab) -> list[str]:
    """What lies in quarantine, by its names in the store."""
    return sorted(name.split("/", 2)[2] for name in lab.names("quarantine/"))


def test_condemned_artifact_is_moved_aside_whole_and_made_anew(lab: StoreLab, store: ArtifactStore) -> None:
    path = payload_path(publish(store, {"latents.bin": b"abc"}), "latents.bin")
    lab.write(path, b"abd")
    with pytest.raises(CorruptedArtifactError, match="SHA-256"):
        store.fetch(STAGE, recipe().key, "latents.bin")
    assert store.condemn(STAGE, recipe().key, why="its SHA-256 is another")
    assert not store.condemn(STAGE, recipe().key, why="again")
    assert store.find(STAGE, recipe().key) is None and list(store.keys(STAGE)) == []
    assert lab.names("artifacts/") == []
    (found,) = store.condemned()
    assert (found.what, found.why) == (f"{STAGE}/{recipe().key}", "its SHA-256 is another")
    assert found.by.startswith("process ") and found.size_bytes > 3
    assert quarantined(lab) == sorted([path, f"{folder_of(recipe())}/manifest.json", "note.json"])
    assert lab.read(f"{found.place}/{path}") == b"abd"
    publish(store, {"latents.bin": b"new"})
    assert store.fetch(STAGE, recipe().key, "latents.bin").read_bytes() == b"new"
    store.sweep(older_than_hours=-1)
    assert [each.place for each in store.condemned()] == [found.place]


def test_condemned_manifest_takes_a_copy_of_what_it_may_have_named(lab: StoreLab, store: ArtifactStore) -> None:
    path = payload_path(publish(store, {"latents.bin": b"abc"}), "latents.bin")
    lab.write(f"{folder_of(recipe())}/manifest.json", b"garbage")
    lab.write(f"{folder_of(recipe())}/README.txt", b"foreign")
    assert store.condemn(STAGE, recipe().key, why="no manifest")
    assert quarantined(lab) == sorted([path, f"{folder_of(recipe())}/manifest.json", "note.json"])
    assert path in lab.names("artifacts/")  # it may be of an attempt under way: a sweep takes it
    publish(store, {"latents.bin": b"new"})
    assert store.fetch(STAGE, recipe().key, "latents.bin").read_bytes() == b"new"


def test_condemned_document_is_moved_aside(lab: StoreLab, store: ArtifactStore) -> None:
    store.put_document("snapshots/preview/a.safetensors", b"damaged")
    assert store.condemn_document("snapshots/preview/a.safetensors", why="no sealed tensors")
    assert not store.condemn_document("snapshots/preview/a.safetensors", why="again")
    assert store.get_document("snapshots/preview/a.safetensors") is None
    (found,) = store.condemned()
    assert (found.what, found.size_bytes) == ("snapshots/preview/a.safetensors", 7)
    assert lab.read(f"{found.place}/documents/snapshots/preview/a.safetensors") == b"damaged"


def test_quarantine_expires_and_can_be_asked_what_would_go(lab: StoreLab, store: ArtifactStore) -> None:
    store.put_document("a.json", b"damaged")
    store.condemn_document("a.json", why="it is")
    lab.write("quarantine/notes.txt", b"a person's")
    (found,) = store.condemned()
    assert store.expire_condemned(older_than_days=1) == []
    assert store.expire_condemned(older_than_days=-1, dry_run=True) == [found.place]
    assert len(list(store.condemned())) == 1
    assert store.expire_condemned(older_than_days=-1) == [found.place]
    assert lab.names("quarantine/") == ["quarantine/notes.txt"]


def test_quarantine_without_a_readable_note_is_still_listed(lab: StoreLab, store: ArtifactStore) -> None:
    store.put_document("a.json", b"damaged")
    store.condemn_document("a.json", why="it is")
    (found,) = store.condemned()
    lab.write(f"{found.place}/note.json", b"{")
    (unknown,) = store.condemned()
    assert (unknown.place, unknown.what, unknown.by) == (found.place, "documents/a.json", "unknown")


def test_removed_artifact_is_gone_with_its_files(lab: StoreLab, store: ArtifactStore) -> None:
    publish(store, {"latents.bin": b"abc"})
    kept = publish(store, {"latents.bin": b"abc"}, recipe(seed=8))
    assert store.remove(STAGE, recipe().key)
    assert store.find(STAGE, recipe().key) is None
    assert not store.remove(STAGE, recipe().key)
    assert lab.names(folder_of(recipe()) + "/") == []
    assert store.find(STAGE, kept.key) == kept


def test_half_removed_artifact_is_no_artifact(lab: StoreLab, store: ArtifactStore) -> None:
    publish(store, {"latents.bin": b"abc"})
    lab.delete(f"{folder_of(recipe())}/manifest.json")  # what an interrupted removal has done first
    assert store.find(STAGE, recipe().key) is None
    assert list(store.keys(STAGE)) == []
    published = publish(store, {"latents.bin": b"again"})
    store.sweep(older_than_hours=0)
    assert len(lab.names("artifacts/")) == 2
    assert store.find(STAGE, recipe().key) == published


def test_file_open_for_reading_survives_a_removal(store: ArtifactStore) -> None:
    publish(store, {"latents.bin": b"abc" * 1000})
    with store.fetch(STAGE, recipe().key, "latents.bin").open("rb") as stream:
        head = stream.read(3)
        store.remove(STAGE, recipe().key)
        assert head + stream.read() == b"abc" * 1000


def test_keys_lists_finished_artifacts_of_one_stage_in_order(lab: StoreLab, store: ArtifactStore) -> None:
    made = [recipe(seed=seed) for seed in range(5)]
    for item in made:
        publish(store, {"latents.bin": b"abc"}, item)
    publish(store, {"latents.bin": b"abc"}, recipe(stage="refine"))
    unfinished = recipe(seed=99)
    lab.write(f"{folder_of(unfinished)}/latents.a0123456789abcdef.bin", b"abc")
    assert list(store.keys(STAGE)) == sorted(item.key for item in made)
    assert list(store.keys("mux")) == []


def test_foreign_files_disturb_nothing_and_survive(lab: StoreLab, store: ArtifactStore) -> None:
    published = publish(store, {"latents.bin": b"abc"})
    foreign = [
        f"artifacts/{STAGE}/notes.txt",
        f"artifacts/{STAGE}/zz/manifest.json",
        f"artifacts/{STAGE}/ab/{'ab' * 31}/manifest.json",
        f"artifacts/{STAGE}/ff/{'0' * 64}/manifest.json",
        "artifacts/lost+found/x",
        f"{folder_of(recipe())}/README.txt",
    ]
    for name in foreign:
        lab.write(name, b"foreign")
    assert list(store.keys(STAGE)) == [recipe().key]
    assert store.find(STAGE, recipe().key) == published
    store.sweep(older_than_hours=0)
    store.remove(STAGE, recipe().key)
    assert lab.names("artifacts/") == sorted(foreign)


def test_sweep_takes_old_leftovers_only_and_can_be_dry(lab: StoreLab, store: ArtifactStore) -> None:
    published = publish(store, {"latents.bin": b"abc"})
    leftover = f"{folder_of(recipe())}/latents.a0123456789abcdef.bin"
    lab.write(leftover, b"half")
    assert store.sweep(older_than_hours=1) == []
    assert store.sweep(older_than_hours=0, dry_run=True) == [leftover]
    assert leftover in lab.names("artifacts/")
    assert store.sweep(older_than_hours=0) == [leftover]
    assert leftover not in lab.names("artifacts/")
    assert store.find(STAGE, recipe().key) == published


def test_file_of_many_megabytes_is_kept_whole(store: ArtifactStore) -> None:
    block = hashlib.sha256(b"block").digest() * 2**15  # 1 MiB
    published = publish(store, {"intermediate.mkv": block * 40 + b"tail"})
    path = store.fetch(STAGE, recipe().key, "intermediate.mkv")
    assert path.stat().st_size == published.payloads["intermediate.mkv"].size_bytes == 40 * 2**20 + 4
    assert path.read_bytes().endswith(block + b"tail")


def test_empty_payload_is_kept(store: ArtifactStore) -> None:
    publish(store, {"empty.bin": b""})
    assert store.fetch(STAGE, recipe().key, "empty.bin").read_bytes() == b""


def test_unicode_in_recipe_and_report_comes_back_equal(lab: StoreLab, store: ArtifactStore) -> None:
    made = recipe(config={"名": "夜の海 🌊", "ß": ["é", "e\u0301"]})
    report = {"caption": "Ein Mädchen sagt: „Grüß Gott“\n\u2028", "numbers": [1, 2.5, None, True]}
    published = publish(store, {"caption.json": "夜".encode()}, made, report=report, flags=("offline_structurer",))
    found = lab.open().find(STAGE, made.key)
    assert found == published
    assert found is not None
    assert found.report == report
    assert found.recipe.config == made.config
    assert found.flags == ("offline_structurer",)


@pytest.mark.parametrize("key", ["", "../../etc", "A" * 64, "0" * 63, "0" * 64 + "\n", "0" * 63 + "/", "..", "é" * 64])
def test_key_that_is_no_digest_is_refused(store: ArtifactStore, key: str) -> None:
    for call in (store.find, store.remove):
        with pytest.raises(InputError):
            call(STAGE, key)
    with pytest.raises(InputError):
        store.fetch(STAGE, key, "clip.mp4")
    with pytest.raises(InputError), store.stage_folder(STAGE, key):
        pass


@pytest.mark.parametrize("stage", ["", "..", "../x", "a/b", "Preview", "preview\n", ".hidden", "x" * 33])
def test_stage_that_is_no_name_is_refused(store: ArtifactStore, stage: str) -> None:
    with pytest.raises(InputError):
        store.find(stage, "0" * 64)
    with pytest.raises(InputError):
        list(store.keys(stage))


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a/b", "/etc/passwd", ".hidden", "a..b", "a.", "x\0", "x\n", "n" * 129]
)
def test_payload_name_that_could_leave_the_folder_is_refused(store: ArtifactStore, tmp_path: Path, name: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    with pytest.raises(InputError):
        store.publish(ManifestDraft(recipe=recipe()), {name: path})
    assert path.exists()


def test_manifest_that_points_out_of_its_folder_is_corrupted(lab: StoreLab, store: ArtifactStore) -> None:
    published = publish(store, {"latents.bin": b"abc"})
    name = f"{folder_of(recipe())}/manifest.json"
    lab.write(name, lab.read(name).replace(published.payloads["latents.bin"].file.encode(), b"../../../../secret"))
    with pytest.raises(CorruptedArtifactError, match="not a plain file name"):
        lab.open().find(STAGE, recipe().key)


def test_document_is_replaced_as_a_whole(lab: StoreLab, store: ArtifactStore) -> None:
    assert store.get_document("batches/night-1/report.json") is None
    store.put_document("batches/night-1/report.json", b"one")
    store.put_document("batches/night-1/report.json", "夜".encode())
    assert lab.open().get_document("batches/night-1/report.json") == "夜".encode()
    assert store.get_document("batches/night-1") is None
    assert lab.names("documents/") == ["documents/batches/night-1/report.json"]


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a/../b", "/etc/passwd", "a//b", "a/", ".x", "a b", "x\0", "n" * 513]
)
def test_document_name_that_is_no_id_is_refused(store: ArtifactStore, name: str) -> None:
    with pytest.raises(InputError):
        store.put_document(name, b"abc")
    with pytest.raises(InputError):
        store.get_document(name)


def test_documents_are_listed_by_folder_with_those_of_one_folder_together(store: ArtifactStore) -> None:
    names = ["batches/a/batch.json", "batches/a/shards/0.json", "batches/a/shards/1.json", "batches/a-b/batch.json"]
    for name in [*names, "reports/a.json"]:
        store.put_document(name, b"{}")
    found = list(store.list_documents("batches"))
    assert sorted(found) == sorted(names)
    folders = [name.split("/")[1] for name in found]
    assert len(list(groupby(folders))) == 2
    assert sorted(store.list_documents("batches/a/shards")) == ["batches/a/shards/0.json", "batches/a/shards/1.json"]
    assert sorted(store.list_documents("batches/a/shards/")) == sorted(store.list_documents("batches/a/shards"))
    assert list(store.list_documents("batches/c")) == []
    assert list(store.list_documents("batches/a/batch.json")) == []
    with pytest.raises(InputError):
        list(store.list_documents("../artifacts"))


def test_removed_document_is_gone_and_may_be_removed_again(lab: StoreLab, store: ArtifactStore) -> None:
    store.put_document("snapshots/preview/a.safetensors", b"abc")
    store.put_document("snapshots/preview/b.safetensors", b"abc")
    store.remove_document("snapshots/preview/a.safetensors")
    store.remove_document("snapshots/preview/a.safetensors")
    assert lab.open().get_document("snapshots/preview/a.safetensors") is None
    assert list(lab.open().list_documents("snapshots")) == ["snapshots/preview/b.safetensors"]
    with pytest.raises(InputError):
        store.remove_document("../artifacts")


def test_old_documents_of_a_folder_are_swept_and_no_others(lab: StoreLab, store: ArtifactStore) -> None:
    for name in ("snapshots/preview/a.safetensors", "batches/b/batch.json"):
        store.put_document(name, b"abc")
    assert store.sweep_documents("snapshots", older_than_hours=1) == []
    assert store.sweep_documents("snapshots", older_than_hours=-1, dry_run=True) == ["snapshots/preview/a.safetensors"]
    assert store.get_document("snapshots/preview/a.safetensors") == b"abc"
    assert store.sweep_documents("snapshots/", older_than_hours=-1) == ["snapshots/preview/a.safetensors"]
    assert list(lab.open().list_documents("snapshots")) == []
    assert store.get_document("batches/b/batch.json") == b"abc"


def test_documents_written_at_once_are_never_mixed(lab: StoreLab) -> None:
    def work(number: int) -> bytes | None:
        store = lab.open()
        for _ in range(5):
            store.put_document("report.json", b"%d" % number * 5000)
        return store.get_document("report.json")

    with ThreadPoolExecutor(4) as pool:
        contents = list(pool.map(work, range(4)))
    assert all(content is not None and len(content) == 5000 and len(set(content)) == 1 for content in contents)


def test_document_that_must_be_new_is_that_of_whoever_was_first(lab: StoreLab, store: ArtifactStore) -> None:
    assert store.create_document("identity.json", b"one") == b"one"
    assert lab.open().create_document("identity.json", b"two") == b"one"
    assert store.get_document("identity.json") == b"one"


def test_one_of_many_writers_at_once_creates_a_document(lab: StoreLab) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda n: lab.open().create_document("identity.json", b"%d" % n), range(8)))
    assert found == {lab.open().get_document("identity.json")}


def test_store_is_empty_until_there_is_a_document_or_a_part_of_an_artifact(lab: StoreLab) -> None:
    assert lab.open().is_empty()
    lab.open().self_test()
    assert lab.open().is_empty()
    lab.open().put_document("batches/b/batch.json", b"{}")
    assert not lab.open().is_empty()
    lab.open().remove_document("batches/b/batch.json")
    assert lab.open().is_empty()
    lab.write(f"artifacts/preview/aa/{'a' * 64}/video.a0123456789abcdef.mp4", b"abc")
    assert not lab.open().is_empty()


def test_self_test_says_what_it_tried_and_leaves_no_artifact(lab: StoreLab, store: ArtifactStore) -> None:
    assert "create-only" in store.self_test()
    assert set(lab.names("")) <= {"doctor/create-only"}


def test_store_is_opened_again_by_its_url(store: ArtifactStore) -> None:
    published = publish(store, {"latents.bin": b"abc"})
    assert open_store(store.url).find(STAGE, recipe().key) == published


# -- many at once ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
def test_a_look_at_many_finds_what_a_look_at_each_does(lab: StoreLab, store: ArtifactStore, is_known: bool) -> None:
    made = [publish(store, {"latents.bin": b"1234", "more.bin": b"5"}, recipe(seed)) for seed in range(5)]
    known = [(each.key, each.to_bytes()) for each in made] if is_known else []
    folders = [f"artifacts/{STAGE}/{each.key[:2]}/{each.key}" for each in made]
    lab.delete(f"{folders[1]}/manifest.json")
    lab.delete(f"{folders[2]}/{made[2].payloads['more.bin'].file}")
    lab.write(f"{folders[3]}/manifest.json", lab.read(f"{folders[3]}/manifest.json").replace(b"cpu", b"gpu"))
    lab.write(f"{folders[4]}/{made[4].payloads['latents.bin'].file}", b"123")
    for keys in (None, [each.key for each in made] + ["0" * 64]):
        found = {look.key: look for look in store.look(STAGE, keys, known=known)}
        assert found.keys() == {each.key for each in (made[0], *made[2:])}
        assert found[made[0].key].manifest == made[0] and found[made[0].key].fault is None
        for hurt in made[2:]:
            assert found[hurt.key].manifest is None and isinstance(found[hurt.key].fault, CorruptedArtifactError)
    assert list(store.look(STAGE, [])) == []


def test_a_manifest_known_from_before_is_not_taken_for_the_one_that_is_stored(store: ArtifactStore) -> None:
    first = publish(store, {"latents.bin": b"1234"})
    store.remove(STAGE, first.key)
    second = publish(store, {"latents.bin": b"1234"})
    assert [look.manifest for look in store.look(STAGE, known=[(first.key, first.to_bytes())])] == [second]


def test_a_look_refuses_what_is_no_key(store: ArtifactStore) -> None:
    with pytest.raises(InputError, match="not a SHA-256"):
        list(store.look(STAGE, ["../x"]))


def test_many_artifacts_go_at_once_and_others_stay(lab: StoreLab, store: ArtifactStore) -> None:
    made = [publish(store, {"latents.bin": b"1234", "more.bin": b"5"}, recipe(seed)) for seed in range(3)]
    store.remove(STAGE, made[0].key)
    store.remove_all(made[:2])
    assert [look.manifest for look in store.look(STAGE)] == [made[2]]
    assert len(lab.names("artifacts/")) == 3


def test_a_sweep_leaves_what_a_known_manifest_names_and_takes_the_rest(lab: StoreLab, store: ArtifactStore) -> None:
    made = [publish(store, {"latents.bin": b"1234"}, recipe(seed)) for seed in range(2)]
    folder = f"artifacts/{STAGE}/{made[0].key[:2]}/{made[0].key}"
    stray = f"{folder}/latents.a0123456789abcdef.bin"
    lab.write(stray, b"of an attempt that lost")
    known = {STAGE: [(each.key, each.to_bytes()) for each in made]}
    assert store.sweep(older_than_hours=0, known=lambda stage: known[stage]) == [stray]
    assert {look.key for look in store.look(STAGE)} == {each.key for each in made}
