"""Deleting a batch takes what it alone has, says so before, and leaves what anybody else has to do with."""

from __future__ import annotations

from pathlib import Path

import pytest

from magi2.artifacts.local import LocalStore
from magi2.batches.deletion import delete_batch
from magi2.types import StageName
from tests.batches.stored_clips import publish, record, render


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def test_what_only_the_batch_has_goes_also_of_clips_that_were_never_finished(store: LocalStore) -> None:
    fox, lost = render(store, "fox"), render(store, "lost", (StageName.ENCODE, StageName.PREVIEW))
    caption = publish(store, StageName.ENHANCE, "fox")
    record(store, "b1", "fox", {StageName.ENHANCE: caption, **fox})
    for stage, manifest in lost.items():
        text = (store.get_document(f"batches/b1/results/0.{stage}.json") or b"").decode()
        store.put_document(f"batches/b1/results/2.{stage}.json", text.replace(fox[stage].key, manifest.key).encode())
    told = delete_batch(store, "b1", lease_days=7.0)
    assert (told.dry_run, store.find("mux", fox[StageName.MUX].key) is None) == (True, False)
    gone = delete_batch(store, "b1", lease_days=7.0, dry_run=False)
    every = [*fox.values(), *lost.values()]
    assert sorted(gone.removed) == sorted(told.removed) == sorted((StageName(m.stage), m.key) for m in every)
    assert (gone.freed_bytes, gone.kept) == (sum(manifest.size_bytes for manifest in every), 1)
    assert not any(store.find(manifest.stage, manifest.key) for manifest in every)
    assert store.find("enhance", caption.key) is not None, "captions stay"
    assert list(store.list_documents("batches/b1/")) == []


def test_what_another_batch_or_the_catalog_names_stays(store: LocalStore) -> None:
    fox, owl, elk = (render(store, name) for name in ("fox", "owl", "elk"))
    for name, made in (("fox", fox), ("owl", owl), ("elk", elk)):
        record(store, f"of-{name}", name, made)
    record(store, "b1", "fox", fox)
    gone = delete_batch(store, "b1", lease_days=7.0, dry_run=False)
    assert (gone.removed, gone.kept) == ((), 4)
    spared = [owl[StageName.MUX].key]
    gone = delete_batch(store, "of-owl", spared=spared, lease_days=7.0, dry_run=False)
    assert {stage for stage, _ in gone.removed} == {StageName.ENCODE, StageName.PREVIEW, StageName.DECODE}
    assert store.find("mux", spared[0]) is not None
    assert all(store.find(manifest.stage, manifest.key) for made in (fox, elk) for manifest in made.values())
