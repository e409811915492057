"""Housekeeping that was killed goes on where it stopped, and ends with what one that ran through would have found."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from magi2.artifacts import LocalStore
from magi2.artifacts.store import Known, Look
from magi2.catalog import Catalog
from magi2.catalog import steps as steps_module
from magi2.catalog.rebuild import rebuild
from magi2.catalog.steps import Steps
from magi2.catalog.verify import verify
from tests.catalog.catalog_samples import StoredPlan, make_clip, publish, result

BATCHES = ("b1", "b2", "b3")


class KilledError(BaseException):
    """What nothing catches."""


class MortalStore(LocalStore):
    """Whoever uses it is killed at the n-th look at a stage or read of a document; it counts them."""

    dies_at = 0
    used = 0

    def _use(self) -> None:
        self.used += 1
        if self.used == self.dies_at:
            raise KilledError

    def look(self, stage: str, keys: Collection[str] | None = None, *, known: Known = ()) -> Iterator[Look]:
        self._use()
        return super().look(stage, keys, known=known)

    def get_document(self, name: str, *, fresh: bool = False) -> bytes | None:
        self._use()
        return super().get_document(name, fresh=fresh)


@pytest.fixture
def store(tmp_path: Path) -> MortalStore:
    """Three batches of one finished clip."""
    store = MortalStore(tmp_path / "store")
    for number, batch_id in enumerate(BATCHES):
        clip, manifest = make_clip(number), publish(store, seed=number)
        plan = StoredPlan(store, batch_id)
        plan.save([[clip]])
        plan.save_results(0, "mux", [result(clip, key=manifest.key)])
    return store


def contents(catalog: Catalog) -> tuple[object, ...]:
    batches = [catalog.batches.get(batch_id) for batch_id in BATCHES]
    return (
        catalog.artifacts.totals(),
        batches,
        [catalog.clips.get(each, make_clip(n).clip_id) for n, each in enumerate(BATCHES)],
    )


@pytest.mark.parametrize("dies_at", [1, 9, 17])
def test_a_rebuild_that_was_killed_goes_on_and_misses_nothing(
    store: MortalStore, catalog: Catalog, dies_at: int
) -> None:
    store.dies_at = dies_at
    with pytest.raises(KilledError):
        rebuild(store, catalog, goes_on=True)
    store.dies_at = store.used = 0
    rebuild(store, catalog, goes_on=True)
    rest, store.used = store.used, 0
    found = contents(catalog)
    assert all(found) and all(found[1]) and all(found[2])  # type: ignore[arg-type]
    rebuild(store, catalog, goes_on=True)  # anew, since that one came to its end
    assert contents(catalog) == found
    assert rest < store.used or dies_at == 1


def test_a_comparison_that_was_killed_goes_on_and_finds_what_is_wrong_further_on(
    store: MortalStore, catalog: Catalog
) -> None:
    rebuild(store, catalog)
    store.used = 0
    list(verify(store, catalog, digests=False))
    whole, store.used = store.used, 0
    store.dies_at = whole - 3
    with pytest.raises(KilledError):
        list(verify(store, catalog, digests=False, steps=Steps(catalog, "verify")))
    store.dies_at = store.used = 0
    StoredPlan(store, BATCHES[-1]).put("cached.json", "no list")
    steps = Steps(catalog, "verify")
    found = list(verify(store, catalog, digests=False, steps=steps))
    assert [problem.place for problem in found] == [f"batches/{BATCHES[-1]}"]
    assert store.used < whole
    steps.clear()
    assert not Steps(catalog, "verify").is_done("mux")


def test_what_was_done_a_day_ago_is_done_again(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    Steps(catalog, "verify").add("mux")
    assert Steps(catalog, "verify").is_done("mux") and not Steps(catalog, "rebuild").is_done("mux")
    monkeypatch.setattr(steps_module, "LONGEST", timedelta(0))
    assert not Steps(catalog, "verify").is_done("mux")
