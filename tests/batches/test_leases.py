"""What an unfinished batch needs stays, whatever its age and whenever a retention comes by."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from magi2.artifacts.local import LocalStore
from magi2.artifacts.manifest import Manifest
from magi2.artifacts.removals import note_removals
from magi2.batches import leases
from magi2.batches.documents import report_name, results_name, write_document
from magi2.batches.leases import (
    LeaseKeeper,
    announced_removal,
    await_removals,
    end_lease,
    lease_for_stage,
    read_leases,
    take_lease,
)
from magi2.batches.plan import save_plan
from magi2.batches.retention import GcReport, RetentionPolicy, collect_garbage, sweep_snapshots
from magi2.batches.schema import LeaseDocument, ReportDocument
from magi2.errors import InfrastructureError
from magi2.recipes.lookup import StoredClip
from magi2.types import StageName
from tests.batches.stored_clips import later, publish, render
from tests.jobs.job_samples import BOOK, CLIPS, Computer, make, planned, work_of

DECODE, MUX = StageName.DECODE, StageName.MUX
LONG_AGO = datetime.now(UTC) - timedelta(days=30)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def old(tmp_path: Path) -> dict[StageName, Manifest]:
    """A clip that was delivered a month ago."""
    return render(LocalStore(tmp_path / "store", clock=LONG_AGO.timestamp), "fox")


def collect(store: LocalStore, days: float = 7, **options: datetime | None) -> GcReport:
    return collect_garbage(store, policy=RetentionPolicy({DECODE: days}), dry_run=False, **options)


def held(store: LocalStore, **at: datetime) -> frozenset[str]:
    return read_leases(store, lease_days=7, now=at.get("now", datetime.now(UTC)), unreadable={}).held


def needs(manifest: Manifest) -> Mapping[str, Mapping[StageName, str]]:
    return {"fox": {StageName(manifest.stage): manifest.key}}


def test_what_a_rerun_has_just_made_stays(store: LocalStore, old: dict[StageName, Manifest]) -> None:
    store.remove(DECODE, old[DECODE].key)
    publish(store, DECODE, "fox", **{"from": old[StageName.PREVIEW].key})  # made anew, for another codec
    assert collect(store).removed == ()


def test_what_a_batch_means_to_use_stays_from_its_plan_on(store: LocalStore, old: dict[StageName, Manifest]) -> None:
    take_lease(store, "b", 0, needs(old[DECODE]))
    report = collect(store, days=0)
    assert (report.removed, report.kept_needed) == ((), 1)


def test_plan_leases_the_artifacts_of_clips_and_the_files_of_finished_ones(store: LocalStore) -> None:
    for clip in CLIPS[:2]:
        make(store, StageName.ENHANCE, clip)
    finished = make(store, MUX, CLIPS[0])
    planned(store)
    keys = {recipe.key for recipe in BOOK.chain(CLIPS[1], CLIPS[1].prompt).values()}
    assert held(store) == {finished, BOOK.enhance(CLIPS[1]).key, *keys}


def test_stages_lease_what_comes_to_be_known(store: LocalStore) -> None:
    plan = planned(store)
    clips = {clip.clip_id: StoredClip(store, BOOK, clip) for clip in CLIPS}
    lease_for_stage(store, plan.batch_id, 0, StageName.ENHANCE, clips)
    assert held(store) == frozenset()
    for clip in CLIPS:
        make(store, StageName.ENHANCE, clip)
    clips = {clip.clip_id: StoredClip(store, BOOK, clip) for clip in CLIPS}
    lease_for_stage(store, plan.batch_id, 0, StageName.ENCODE, clips)
    expected = {recipe.key for clip in CLIPS for recipe in BOOK.chain(clip, clip.prompt).values()}
    assert held(store) == expected | {BOOK.enhance(clip).key for clip in CLIPS}
    lease_for_stage(store, plan.batch_id, 0, MUX, {})
    assert expected < held(store)


def test_delivered_clip_frees_all_but_its_file(store: LocalStore) -> None:
    plan = planned(store)
    clips = {clip.clip_id: StoredClip(store, BOOK, clip) for clip in CLIPS}
    for clip in CLIPS:
        make(store, StageName.ENHANCE, clip)
    lease_for_stage(store, plan.batch_id, 0, StageName.ENCODE, clips)
    every = held(store)
    Computer(store, failing_seed=2)(work_of(plan, store, MUX), lambda event: None)
    unreadable = results_name(plan.batch_id, 0, MUX)
    results = store.get_document(unreadable) or b""
    store.put_document(unreadable, results[:100])
    assert held(store) == every
    store.put_document(unreadable, results)
    files = {BOOK.chain(clip, clip.prompt)[MUX].key for clip in CLIPS}
    waiting = {recipe.key for recipe in BOOK.chain(CLIPS[2], CLIPS[2].prompt).values()}
    assert held(store) == files | waiting | {BOOK.enhance(CLIPS[2]).key}


def test_lease_ends_with_the_report(store: LocalStore, old: dict[StageName, Manifest]) -> None:
    take_lease(store, "b", 0, needs(old[DECODE]))
    report = ReportDocument(
        batch_id="b",
        name="b",
        source="b.jsonl",
        run_id=None,
        failure_limit=0,
        seconds=1.0,
        finished_at=datetime.now(UTC),
        stages={},
        stages_reused=0,
        failed=(),
    )
    write_document(store, report_name("b"), report)
    assert held(store) == frozenset()
    take_lease(store, "b", 0, needs(old[DECODE]))  # a task of it was cleared
    assert held(store) == {old[DECODE].key}


def test_lease_ends_after_a_silence_and_a_sign_of_life_prolongs_it(
    store: LocalStore, old: dict[StageName, Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    take_lease(store, "b", 0, needs(old[DECODE]))
    assert held(store, now=later(6.9)) and not held(store, now=later(7.1))
    document = LeaseDocument(batch_id="b", shard=0, at=LONG_AGO, clips=needs(old[DECODE]))
    write_document(store, "leases/b.0.json", document)
    keeper = LeaseKeeper(store, "b", 0, lease_days=7)
    keeper.renew()
    assert held(store) == frozenset()  # not due yet
    monkeypatch.setattr(keeper, "_renewed", -1e9)
    keeper.renew()
    assert held(store) == {old[DECODE].key}


def test_use_counts_as_age_when_the_lease_has_ended(store: LocalStore, old: dict[StageName, Manifest]) -> None:
    take_lease(store, "b", 0, needs(old[DECODE]))
    end_lease(store, "b", 0)
    assert held(store) == frozenset()
    assert collect(store, now=later(6.9)).removed == ()
    assert collect(store, now=later(7.1)).removed == ((DECODE, old[DECODE].key),)
    collect(store, now=later(8.1))
    assert list(store.list_documents("leases")) == []


@pytest.mark.parametrize("content", [b'{"clips": {"fox": {"decode": "KEY"}}', b'{"version": 99, "x": "KEY"}'])
def test_unreadable_lease_is_named_and_holds_what_it_names(
    store: LocalStore, old: dict[StageName, Manifest], content: bytes
) -> None:
    store.put_document("leases/b.0.json", content.replace(b"KEY", old[DECODE].key.encode()))
    report = collect(store)
    assert (report.removed, list(report.unreadable)) == ((), ["leases/b.0.json"])


class Interrupted(LocalStore):
    """A store in which something happens as soon as a retention has said what it will remove."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.meanwhile = lambda: None

    def put_document(self, name: str, content: bytes) -> None:
        super().put_document(name, content)
        if name.startswith("leases/removing-"):
            self.meanwhile()


def test_lease_taken_after_the_first_look_is_seen_at_the_second(tmp_path: Path, old: dict[StageName, Manifest]) -> None:
    store = Interrupted(tmp_path / "store")
    document = LeaseDocument(batch_id="b", shard=0, at=datetime.now(UTC), clips=needs(old[DECODE]))
    store.meanwhile = lambda: write_document(LocalStore(store.root), "leases/b.0.json", document)
    report = collect(store)
    assert (report.removed, report.kept_needed) == ((), 1)
    assert list(store.list_documents("leases")) == ["leases/b.0.json"]


def test_artifact_made_anew_after_the_first_look_stays(tmp_path: Path, old: dict[StageName, Manifest]) -> None:
    store = Interrupted(tmp_path / "store")

    def make_anew() -> None:
        store.remove(DECODE, old[DECODE].key)
        publish(store, DECODE, "fox", **old[DECODE].recipe.inputs)

    store.meanwhile = make_anew
    assert collect(store).removed == ()
    assert store.find(DECODE, old[DECODE].key) is not None


def test_whoever_takes_a_lease_waits_for_what_is_being_removed(
    store: LocalStore, old: dict[StageName, Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_PAUSE_S", 0.01)
    taken = threading.Event()

    def take() -> None:
        take_lease(store, "b", 0, needs(old[DECODE]))
        taken.set()

    with announced_removal(store, [old[DECODE].key]):
        await_removals(store, [old[MUX].key])  # another one: no wait
        waiting = threading.Thread(target=take)
        waiting.start()
        assert not taken.wait(0.2)
        store.remove(DECODE, old[DECODE].key)
    waiting.join(timeout=20)
    assert taken.is_set() and store.find(DECODE, old[DECODE].key) is None


def test_announcement_of_a_retention_that_died_is_waited_for_and_taken_away(
    store: LocalStore, old: dict[StageName, Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_PAUSE_S", 0.01)
    monkeypatch.setattr(leases, "LONGEST_REMOVAL_S", 0.05)
    store.put_document("leases/removing-a0.json", json.dumps({"keys": [old[DECODE].key]}).encode())
    take_lease(store, "b", 0, needs(old[DECODE]))
    assert list(store.list_documents("leases")) == ["leases/b.0.json"]


def test_retention_that_has_no_time_left_removes_nothing_more(
    store: LocalStore, old: dict[StageName, Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "REMOVAL_S", -1.0)
    with pytest.raises(InfrastructureError, match="reading the leases took longer"):
        collect(store)
    assert store.find(DECODE, old[DECODE].key) is not None
    assert list(store.list_documents("leases")) == []


def test_plan_with_a_file_that_was_removed_meanwhile_is_refused(store: LocalStore) -> None:
    make(store, StageName.ENHANCE, CLIPS[0])
    key = make(store, MUX, CLIPS[0])
    plan = replace(planned(store, CLIPS[:1]), batch_id="another")
    note_removals(store, MUX, [key], datetime.now(UTC))
    save_plan(plan, store)  # noted, and made anew since
    store.remove(MUX, key)
    with pytest.raises(InfrastructureError, match=f"mux/{key} was removed while it was planned with"):
        save_plan(plan, store)


def test_snapshots_of_an_unfinished_batch_stay(store: LocalStore, old: dict[StageName, Manifest]) -> None:
    key = old[StageName.PREVIEW].key
    name = f"snapshots/preview/{key}.safetensors"
    store.put_document(name, b"of a stage that is made again and compared")
    take_lease(store, "b", 0, needs(old[StageName.PREVIEW]))
    assert sweep_snapshots(store, older_than_hours=-1, dry_run=False) == []
    end_lease(store, "b", 0)
    assert sweep_snapshots(store, dry_run=False) == [name]
