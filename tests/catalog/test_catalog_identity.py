"""Store and catalog know each other: a store that is empty, foreign or half there changes nothing in the catalog."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Table, select, update

from magi2.artifacts import ArtifactStore, LocalStore, Manifest
from magi2.batches.retention import RetentionPolicy, collect_garbage
from magi2.catalog import Action, Actor, Catalog, ClipQuery, ClipState, open_catalog
from magi2.catalog.identity import (
    DOCUMENT,
    FOREIGN,
    UNKNOWN,
    find_mismatch,
    last_refusal,
    require_complete,
    require_match,
)
from magi2.catalog.rebuild import rebuild
from magi2.catalog.tables import Base, IdentityRow
from magi2.catalog.verify import verify
from magi2.errors import ConfigError, IdentityError, InfrastructureError
from magi2.types import Clip, StageName
from tests.catalog.catalog_samples import StoredPlan, done, enter, failed, make_clip, publish, result

CLIPS = 20
ANN = Actor("1", "ann")


@dataclass
class Deployment:
    """Twenty delivered clips, with what only the catalog knows of their batch."""

    store: LocalStore
    catalog: Catalog
    clips: list[Clip]
    manifests: list[Manifest]

    def rows(self) -> dict[str, list[str]]:
        """All that the catalog holds but whom it belongs to."""
        tables = [table for table in Base.metadata.sorted_tables if table.name != "identity"]
        return {table.name: self.catalog.database.read(_rows, table) for table in tables}

    def lose(self, clips: int) -> None:
        for manifest in self.manifests[:clips]:
            self.store.remove("mux", manifest.key)

    def in_state(self, state: ClipState) -> int:
        return self.catalog.clips.search(ClipQuery(state=state)).total


def _rows(connection: Connection, table: Table) -> list[str]:
    return sorted(map(repr, connection.execute(select(table))))


@pytest.fixture
def old(catalog: Catalog, store: LocalStore) -> Deployment:
    """As an older version left it: neither side has an identity."""
    clips = [make_clip(number) for number in range(CLIPS)]
    manifests = [publish(store, seed=number) for number in range(CLIPS)]
    plan = StoredPlan(store)
    plan.save([clips])
    plan.save_results(0, "mux", [result(c, key=m.key) for c, m in zip(clips, manifests, strict=True)], attempt=2)
    enter(catalog, clips)
    catalog.artifacts.index(manifests)
    catalog.control.set_priority("night", 7, by=ANN)
    catalog.control.set_budget("night", 12.5, by=ANN)
    catalog.runs.finish("night", [failed(clips[0].clip_id, StageName.MUX, host="node-7", accelerator_seconds=4.0)])
    runs = [
        done(clip.clip_id, manifest, attempt=2, accelerator_seconds=8.0, host="node-8")
        for clip, manifest in zip(clips, manifests, strict=True)
    ]
    catalog.runs.finish("night", runs)
    return Deployment(store, catalog, clips, manifests)


@pytest.fixture
def joined(old: Deployment) -> Deployment:
    require_match(old.store, old.catalog)
    return old


def unmount(store: LocalStore) -> Callable[[], object]:
    """Take the store's folder away; what brings it back."""
    aside = store.root.with_name("unmounted")
    store.root.rename(aside)
    return lambda: aside.rename(store.root)


def stored(store: ArtifactStore) -> str:
    return str(json.loads(store.get_document(DOCUMENT) or b"{}").get("identity"))


def entered(catalog: Catalog) -> str | None:
    return catalog.database.read(lambda connection: connection.scalar(select(IdentityRow.identity)))


def make_foreign(catalog: Catalog) -> None:
    catalog.database.write(lambda connection: connection.execute(update(IdentityRow).values(identity="f" * 32)))


@pytest.mark.parametrize("is_joined", [False, True], ids=["older version", "joined"])
def test_rebuild_from_a_store_that_is_not_mounted_changes_nothing(old: Deployment, is_joined: bool) -> None:
    site = old
    if is_joined:
        require_match(site.store, site.catalog)
    before, mount = site.rows(), unmount(site.store)
    for _ in range(2):
        with pytest.raises(IdentityError, match="the store misses 20 of the 20 delivered clips"):
            rebuild(site.store, site.catalog)
    assert not site.store.root.exists()
    assert site.rows() == before
    mount()
    rebuild(site.store, site.catalog)
    for table in ("artifacts", "batch_clips", "stage_runs", "batch_actions"):
        assert site.rows()[table] == before[table]


@pytest.mark.parametrize("is_joined", [False, True], ids=["older version", "joined"])
def test_no_writer_makes_a_store_where_none_is_mounted(old: Deployment, is_joined: bool) -> None:
    site = old
    if is_joined:
        require_match(site.store, site.catalog)
    unmount(site.store)
    with pytest.raises(IdentityError, match="misses 20 of the 20"):
        require_match(site.store, site.catalog)
    assert not site.store.root.exists()


@pytest.mark.parametrize("lost", [3, 5, 20])
def test_rebuild_from_a_store_that_misses_more_than_a_tenth_changes_nothing(joined: Deployment, lost: int) -> None:
    joined.lose(lost)
    before = joined.rows()
    with pytest.raises(IdentityError, match=f"misses {lost} of the 20 delivered clips"):
        rebuild(joined.store, joined.catalog)
    assert joined.rows() == before


@pytest.mark.parametrize("lost", [1, 2])
def test_rebuild_goes_on_without_a_tenth_and_reports_it(joined: Deployment, lost: int) -> None:
    joined.lose(lost)
    assert len(list(verify(joined.store, joined.catalog, digests=False))) == lost
    assert rebuild(joined.store, joined.catalog).artifacts_forgotten == lost
    assert joined.in_state(ClipState.DONE) == CLIPS - lost


def test_what_retention_removed_is_not_missed(joined: Deployment) -> None:
    policy = RetentionPolicy(keep_days={StageName.MUX: 0})
    for manifest in joined.manifests[15:]:
        joined.store.remove("mux", manifest.key)
    kept = [publish(joined.store, seed=number) for number in range(15, CLIPS)]
    for manifest in kept[1:]:
        joined.store.remove("mux", manifest.key)
    assert len(collect_garbage(joined.store, policy=policy, dry_run=False).removed) == 16
    with pytest.raises(IdentityError, match="misses 4 of the 4 delivered clips"):
        rebuild(joined.store, joined.catalog)


def test_all_clips_removed_by_retention_leave_a_complete_store(joined: Deployment) -> None:
    policy = RetentionPolicy(keep_days={StageName.MUX: 0})
    collect_garbage(joined.store, policy=policy, dry_run=False)
    assert rebuild(joined.store, joined.catalog).artifacts_forgotten == CLIPS


def test_clip_made_anew_after_retention_is_missed_when_it_is_lost(joined: Deployment) -> None:
    policy = RetentionPolicy(keep_days={StageName.MUX: 0})
    collect_garbage(joined.store, policy=policy, dry_run=False)
    later = LocalStore(joined.store.root, clock=lambda: (datetime.now(UTC) + timedelta(hours=1)).timestamp())
    anew = [publish(later, seed=number) for number in range(CLIPS)]
    joined.catalog.artifacts.index(anew)
    joined.lose(CLIPS)
    with pytest.raises(IdentityError, match="misses 20 of the 20"):
        rebuild(joined.store, joined.catalog)


def test_note_of_retention_that_cannot_be_read_excuses_nothing(joined: Deployment) -> None:
    collect_garbage(joined.store, policy=RetentionPolicy(keep_days={StageName.MUX: 0}), dry_run=False)
    (note,) = joined.store.list_documents("removed")
    joined.store.put_document(note, b'{"at": "2031-')
    with pytest.raises(IdentityError, match="misses 20 of the 20"):
        rebuild(joined.store, joined.catalog)


def test_both_get_one_identity_when_both_are_empty(catalog: Catalog, store: LocalStore) -> None:
    require_match(store, catalog, dry_run=True)
    assert (store.get_document(DOCUMENT), entered(catalog)) == (None, None)
    require_match(store, catalog)
    first = stored(store)
    assert len(first) == 32
    require_match(store, catalog)
    assert (stored(store), entered(catalog)) == (first, first)


def test_writers_that_start_at_once_agree_on_one_identity(catalog: Catalog, store: LocalStore) -> None:
    barrier = threading.Barrier(8)

    def work(_: int) -> None:
        barrier.wait()
        require_match(LocalStore(store.root), catalog)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert stored(store) == entered(catalog)


def test_store_and_catalog_of_an_older_version_are_joined_without_a_question(old: Deployment) -> None:
    before = old.rows()
    require_match(old.store, old.catalog)
    assert stored(old.store) == entered(old.catalog)
    assert old.rows() == before


def test_new_catalog_takes_the_identity_of_its_store(joined: Deployment, tmp_path: Path) -> None:
    new = open_catalog(f"sqlite:///{tmp_path}/new/catalog.sqlite")
    assert rebuild(joined.store, new).clips == CLIPS
    assert entered(new) == stored(joined.store)


def test_store_without_identity_takes_the_catalogs_if_it_is_complete(joined: Deployment) -> None:
    joined.store.remove_document(DOCUMENT)
    assert find_mismatch(joined.store, joined.catalog) == UNKNOWN
    require_match(joined.store, joined.catalog)
    assert stored(joined.store) == entered(joined.catalog)
    assert find_mismatch(joined.store, joined.catalog) is None


def test_store_without_identity_is_refused_if_it_is_not_complete(joined: Deployment) -> None:
    joined.store.remove_document(DOCUMENT)
    joined.lose(5)
    with pytest.raises(IdentityError, match="misses 5 of the 20"):
        require_match(joined.store, joined.catalog)
    assert joined.store.get_document(DOCUMENT) is None


def test_empty_store_is_refused_beside_a_catalog_of_undelivered_clips(catalog: Catalog, store: LocalStore) -> None:
    enter(catalog, [make_clip()])
    for refused in (require_match, require_complete):
        with pytest.raises(IdentityError, match="the store is empty and the catalog is not"):
            refused(store, catalog)
    assert not store.root.exists()


def test_foreign_store_is_refused_though_it_has_all_clips(joined: Deployment) -> None:
    make_foreign(joined.catalog)
    before = joined.rows()
    for refused in (require_match, require_complete, rebuild):
        with pytest.raises(IdentityError, match=FOREIGN):
            refused(joined.store, joined.catalog)
    assert joined.rows() == before
    assert find_mismatch(joined.store, joined.catalog) == FOREIGN
    problem = next(iter(verify(joined.store, joined.catalog, digests=False)))
    assert (problem.kind, problem.message) == ("foreign", FOREIGN)


def test_damaged_identity_is_refused_and_named(joined: Deployment) -> None:
    joined.store.put_document(DOCUMENT, b'{"identity": "')
    with pytest.raises(IdentityError, match=f"{DOCUMENT} holds no identity"):
        require_match(joined.store, joined.catalog)


def test_force_takes_the_store_as_it_is_and_drops_nothing_that_only_the_catalog_knows(joined: Deployment) -> None:
    before, mount = joined.rows(), unmount(joined.store)
    report = rebuild(joined.store, joined.catalog, force=True)
    assert (report.artifacts_forgotten, report.batches_unproven) == (CLIPS, 1)
    after = joined.rows()
    for table in ("batches", "batch_actions", "stage_runs", "clips", "batch_rows_refused"):
        assert after[table] == before[table]
    batch = joined.catalog.batches.get("night")
    assert batch is not None
    assert (batch.priority, batch.budget) == (7, 12.5)
    assert joined.catalog.batches.accelerator_seconds(["night"]) == {"night": 8.0 * CLIPS + 4.0}
    actions = [record.action for record in joined.catalog.control.actions("night").rows]
    assert actions == [Action.SET_BUDGET, Action.SET_PRIORITY]
    joined.store.root.rename(joined.store.root.with_name("empty"))
    mount()
    rebuild(joined.store, joined.catalog)
    assert joined.in_state(ClipState.DONE) == CLIPS


def test_force_gives_a_catalog_the_identity_of_a_foreign_store(joined: Deployment) -> None:
    make_foreign(joined.catalog)
    rebuild(joined.store, joined.catalog, force=True)
    assert entered(joined.catalog) == stored(joined.store)
    require_match(joined.store, joined.catalog)


def test_store_that_goes_away_in_the_midst_of_a_rebuild_changes_nothing(
    joined: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = joined.rows()
    keys, looks = LocalStore.keys, []

    def keys_until_it_is_gone(self: LocalStore, stage: str) -> Iterator[str]:
        looks.append(stage)
        if looks.count(StageName.MUX) == 2:  # the first look counts what is missing
            unmount(self)
        return keys(self, stage)

    monkeypatch.setattr(LocalStore, "keys", keys_until_it_is_gone)
    with pytest.raises(IdentityError, match="went away"):
        rebuild(joined.store, joined.catalog)
    assert joined.rows() == before


def test_refusal_is_entered_for_pages_until_the_store_is_right_again(joined: Deployment) -> None:
    mount = unmount(joined.store)
    with pytest.raises(IdentityError):
        rebuild(joined.store, joined.catalog)
    assert last_refusal(joined.catalog) == "the store misses 20 of the 20 delivered clips that the catalog knows"
    mount()
    require_match(joined.store, joined.catalog)
    assert last_refusal(joined.catalog)  # the quick look counts nothing
    require_complete(joined.store, joined.catalog)
    assert last_refusal(joined.catalog) is None


def test_folder_that_cannot_be_read_is_not_taken_for_empty(joined: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def broken(path: Any) -> Any:
        if "artifacts/mux" in str(path):
            raise OSError(5, "Input/output error", str(path))
        return scandir(path)

    before = joined.rows()
    monkeypatch.setattr(os, "scandir", broken)
    with pytest.raises(InfrastructureError, match="Input/output error"):
        rebuild(joined.store, joined.catalog)
    monkeypatch.undo()
    assert joined.rows() == before


def test_refusal_is_never_tried_again_and_says_what_to_do(joined: Deployment) -> None:
    unmount(joined.store)
    with pytest.raises(IdentityError, match=r"mount or name the right store.*rebuild --force") as refused:
        require_match(joined.store, joined.catalog)
    assert isinstance(refused.value, ConfigError) and not refused.value.retryable
