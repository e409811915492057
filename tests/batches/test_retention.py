"""Retention lets old intermediates go and nothing that a clip still needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from magi2.artifacts.local import LocalStore
from magi2.artifacts.removals import read_removals
from magi2.batches.retention import RetentionPolicy, collect_garbage, sweep_snapshots
from magi2.errors import InputError
from magi2.types import NEGATIVE, StageName
from tests.batches.stored_clips import CHAIN, later, publish, record, render


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def test_lossless_intermediates_go_a_week_after_delivery(store: LocalStore) -> None:
    made = render(store, "fox")
    early = collect_garbage(store, policy=RetentionPolicy(), dry_run=False, now=later(6.9))
    assert early.removed == ()
    report = collect_garbage(store, policy=RetentionPolicy(), dry_run=False, now=later(7.1))
    assert report.removed == ((StageName.DECODE, made[StageName.DECODE].key),)
    assert report.freed_bytes == made[StageName.DECODE].size_bytes
    left = {stage for stage, manifest in made.items() if store.find(stage, manifest.key)}
    assert left == set(CHAIN) - {StageName.DECODE}


def test_a_dry_run_removes_nothing(store: LocalStore) -> None:
    made = render(store, "fox")
    report = collect_garbage(store, policy=RetentionPolicy(), now=later(8))
    assert report.dry_run and len(report.removed) == 1
    assert store.find(StageName.DECODE, made[StageName.DECODE].key) is not None


def test_what_was_never_delivered_stays_whatever_its_age(store: LocalStore) -> None:
    render(store, "fox", CHAIN[:3])
    report = collect_garbage(store, policy=RetentionPolicy(), dry_run=False, now=later(1000))
    assert (report.removed, report.kept_needed) == ((), 1)


def test_an_intermediate_shared_with_an_undelivered_clip_stays(store: LocalStore) -> None:
    made = render(store, "fox")
    record(store, "b1", "delivered", made)
    record(store, "b2", "waiting", {StageName.DECODE: made[StageName.DECODE]})
    report = collect_garbage(store, policy=RetentionPolicy(), dry_run=False, now=later(8))
    assert (report.removed, report.kept_needed) == ((), 1)


def test_retention_can_be_limited_to_one_batch(store: LocalStore) -> None:
    fox, owl = render(store, "fox"), render(store, "owl")
    record(store, "b1", "fox", fox)
    record(store, "b2", "owl", owl)
    policy = RetentionPolicy(keep_days={StageName.DECODE: 0}, batch_id="b2")
    report = collect_garbage(store, policy=policy, dry_run=False, now=later(1))
    assert report.removed == ((StageName.DECODE, owl[StageName.DECODE].key),)
    with pytest.raises(InputError, match="batch b3 has no results"):
        collect_garbage(store, policy=RetentionPolicy(batch_id="b3"))


@pytest.mark.parametrize("stage", [StageName.ENHANCE, NEGATIVE])
def test_captions_never_go(stage: StageName) -> None:
    with pytest.raises(InputError, match="never removed"):
        RetentionPolicy(keep_days={stage: 1})


def test_delivered_files_go_only_when_asked_for(store: LocalStore) -> None:
    made = render(store, "fox")
    policy = RetentionPolicy(keep_days={StageName.MUX: 30})
    assert collect_garbage(store, policy=policy, now=later(29)).removed == ()
    assert collect_garbage(store, policy=policy, now=later(31)).removed == ((StageName.MUX, made[StageName.MUX].key),)


DAMAGED = {
    "truncated": lambda data: data[: len(data) - 3],
    "not UTF-8": lambda data: data.replace(b'"state"', b'"\xff\xfe"'),
    "of a newer version": lambda data: data.replace(b"{", b'{"version": 99, ', 1),
    "another document": lambda data: b'["' + data[data.index(b'"key": "') + 8 :][:64] + b'"]',
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_unreadable_results_are_named_and_what_they_still_name_stays(store: LocalStore, damage: str) -> None:
    fox, owl = render(store, "fox"), render(store, "owl")
    record(store, "b1", "fox", fox)
    record(store, "b2", "owl", owl)
    record(store, "b3", "waiting", {StageName.DECODE: owl[StageName.DECODE]})
    name = "batches/b3/results/0.decode.json"
    store.put_document(name, DAMAGED[damage](store.get_document(name) or b""))
    report = collect_garbage(store, policy=RetentionPolicy(), dry_run=False, now=later(8))
    assert report.removed == ((StageName.DECODE, fox[StageName.DECODE].key),)
    assert list(report.unreadable) == [name] and name in report.unreadable[name]
    assert store.find(StageName.DECODE, owl[StageName.DECODE].key) is not None


STRAYS = (
    ".nfs000000000001",
    ".0.mux.json.swp",
    "0.mux.json~",
    "0.mux.json.bak",
    "notes.txt",
    "Neu 1.json",
    "x/0.mux.json",
)


@pytest.mark.parametrize("stray", STRAYS)
def test_stray_files_among_documents_disturb_nobody(store: LocalStore, stray: str) -> None:
    fox = render(store, "fox")
    record(store, "b1", "fox", fox)
    for folder in ("batches/b1/results", "batches/b1", "snapshots/preview", "snapshots", "removed/mux"):
        path = store.root / "documents" / folder / stray
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\xff{")
    assert sweep_snapshots(store, dry_run=False) == []
    report = collect_garbage(store, policy=RetentionPolicy(), dry_run=False, now=later(8))
    assert (report.removed, report.unreadable) == (((StageName.DECODE, fox[StageName.DECODE].key),), {})
    assert read_removals(store, StageName.MUX) == {}


def test_snapshots_of_made_clips_and_old_ones_are_swept_and_no_others(store: LocalStore) -> None:
    made = publish(store, StageName.PREVIEW, "fox")
    stale, fresh = (f"snapshots/preview/{key}.safetensors" for key in (made.key, "0" * 64))
    for name in (stale, fresh):
        store.put_document(name, b"state")
    assert sweep_snapshots(store) == [stale]
    assert sorted(store.list_documents("snapshots")) == sorted([stale, fresh])
    assert sweep_snapshots(store, dry_run=False) == [stale]
    assert list(store.list_documents("snapshots")) == [fresh]
    assert sweep_snapshots(store, older_than_hours=-1, dry_run=False) == [fresh]
    assert list(store.list_documents("snapshots")) == []
