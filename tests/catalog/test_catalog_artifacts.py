"""The artifact index repeats manifests, and what it loses no clip keeps."""

from __future__ import annotations

import pytest

from magi2.artifacts import LocalStore
from magi2.catalog import ArtifactRecord, Catalog, ClipState
from magi2.catalog import artifacts as module
from tests.catalog.catalog_samples import done, enter, make_clip, publish


def test_manifest_comes_back_as_its_row(catalog: Catalog, store: LocalStore) -> None:
    manifest = publish(store, flags=("offline_fallback", "夜"), device="musa", host="node-7")
    catalog.artifacts.index([manifest])
    record = catalog.artifacts.get(manifest.key)
    assert record == ArtifactRecord.of(manifest)
    assert record == ArtifactRecord(
        stage="mux",
        key=manifest.key,
        size_bytes=len(b"picture 0"),
        created_at=manifest.created_at,
        device="musa",
        host="node-7",
        flags=("offline_fallback", "夜"),
        make_seconds=1.5,
        code_version=manifest.code_version,
    )
    assert catalog.artifacts.get("f" * 64) is None


def test_artifact_made_anew_replaces_its_row(catalog: Catalog, store: LocalStore) -> None:
    first = publish(store, host="one")
    catalog.artifacts.index([first])
    store.remove("mux", first.key)
    second = publish(store, host="two")
    catalog.artifacts.index([second, second])
    assert catalog.artifacts.get(first.key) == ArtifactRecord.of(second)


def test_all_artifacts_of_a_stage_are_read_in_order_page_by_page(
    catalog: Catalog, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAGE", 2)
    manifests = [publish(store, seed=seed) for seed in range(5)]
    catalog.artifacts.index([*manifests, publish(store, "preview")])
    keys = [record.key for record in catalog.artifacts.records("mux")]
    assert keys == sorted(manifest.key for manifest in manifests)
    assert list(catalog.artifacts.records("decode")) == []
    assert catalog.artifacts.totals() == {"mux": (5, 45), "preview": (1, 9)}


def test_clip_whose_file_is_removed_waits_again(catalog: Catalog, store: LocalStore) -> None:
    manifest = publish(store)
    catalog.artifacts.index([manifest])
    one, two = enter(catalog, [make_clip(1), make_clip(2)])
    catalog.runs.finish("night", [done(one, manifest), done(two, manifest)])
    catalog.clips.mark("night", [two], ClipState.RUNNING)
    catalog.artifacts.forget([manifest.key, "f" * 64])
    first, second = (catalog.clips.get("night", clip_id) for clip_id in (one, two))
    assert first is not None
    assert second is not None
    assert (first.state, first.artifact_key, first.reason) == ("waiting", None, "its file was removed from the store")
    assert (second.state, second.artifact_key) == ("running", None)
    assert catalog.artifacts.totals() == {}
