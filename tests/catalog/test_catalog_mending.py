"""A rebuild mends the states of clips both ways: what comes out is what an undisturbed run leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from magi2.artifacts import LocalStore
from magi2.batches.documents import results_name
from magi2.catalog import BatchState, Catalog, ClipQuery, ClipState, PlannedClip, Run, RunState
from magi2.catalog.clips import outcome, settle_clips
from magi2.catalog.rebuild import rebuild
from magi2.types import Clip, StageName
from tests.catalog.catalog_samples import PROFILES, StoredPlan, done, failed, make_batch, make_clip, publish, result


def states(catalog: Catalog, clips: Sequence[Clip]) -> list[ClipState]:
    found = [catalog.clips.get("night", clip.clip_id) for clip in clips]
    return [record.state for record in found if record is not None]


def batch_state(catalog: Catalog) -> BatchState:
    batch = catalog.batches.get("night")
    assert batch is not None
    return batch.state


def rows(catalog: Catalog) -> list[tuple[object, ...]]:
    """What people see of clips and batch, times apart."""
    clips = catalog.clips.search(ClipQuery(batch_id="night"), limit=100).rows
    batch = catalog.batches.get("night")
    assert batch is not None
    seen = [(c.clip_id, c.state, c.failed_stage, c.reason, c.artifact_key) for c in clips]
    return [*sorted(seen), (batch.state,)]


class Night:
    """A run of two clips whose second fails for good, told to a store's documents and to a catalog that may be away."""

    def __init__(self, catalog: Catalog, store: LocalStore) -> None:
        self.catalog, self.store = catalog, store
        self.clips = [make_clip(1), make_clip(2)]
        self.plan = StoredPlan(store)
        self.plan.save([self.clips], refused=[])
        catalog.batches.create(make_batch(clips_total=2, failure_limit=1), PROFILES)
        catalog.batches.mark("night", BatchState.RUNNING)
        catalog.clips.add("night", [PlannedClip(clip, 0) for clip in self.clips])
        self.manifest = publish(store)

    def attempt(self, stage: StageName, number: int, *runs: Run, heard: bool = True, told: bool = True) -> None:
        """An attempt at a stage that comes to its end, heard by the catalog and told in a document or not."""
        runs = tuple(replace(run, stage=stage, attempt=number, shard=0) for run in runs)
        if heard:
            self.start(stage, number, runs)
            self.catalog.artifacts.index([self.manifest])
            self.catalog.runs.finish("night", runs)
        if told:
            of = {clip.clip_id: clip for clip in self.clips}
            shown = [
                result(of[r.clip_id], r.state, key=r.artifact_key, error=r.error, error_code=r.error_code) for r in runs
            ]
            name = results_name("night", 0, stage, number).removeprefix("batches/night/")
            content = {"batch_id": "night", "shard": 0, "stage": stage, "attempt": number, "results": shown}
            self.plan.put(name, content)

    def start(self, stage: StageName, number: int, runs: Sequence[Run]) -> None:
        self.catalog.runs.start("night", stage, [run.clip_id for run in runs], attempt=number, shard=0)

    def undisturbed(self, *, heard: bool = True) -> None:
        """The whole course: the first attempt at mux is lost, the second delivers."""
        one, two = (clip.clip_id for clip in self.clips)
        self.attempt(StageName.PREVIEW, 1, made(one, StageName.PREVIEW), failed(two), heard=heard)
        if heard:
            self.start(StageName.MUX, 1, [self.delivers])
        self.attempt(StageName.MUX, 2, self.delivers, heard=heard)

    @property
    def delivers(self) -> Run:
        return done(self.clips[0].clip_id, self.manifest)

    @property
    def late(self) -> Run:
        return failed(self.clips[0].clip_id, StageName.MUX, attempt=1, error="its process was lost")

    def end(self) -> None:
        self.catalog.batches.mark("night", BatchState.DONE)


def made(clip_id: str, stage: StageName) -> Run:
    return Run(clip_id=clip_id, stage=stage, state=RunState.MADE)


def fail_wrongly(night: Night) -> None:
    """What an older version entered at the late end of the first attempt."""
    one = night.clips[0].clip_id
    lost = outcome(one, ClipState.FAILED, failed_stage=StageName.MUX, reason="its process was lost")
    night.catalog.database.write(settle_clips, "night", [lost])


def finish_wrongly(night: Night) -> None:
    """The second clip, which failed, with a file that is another's."""
    wrong = outcome(night.clips[1].clip_id, ClipState.DONE, artifact_key=night.manifest.key)
    night.catalog.database.write(settle_clips, "night", [wrong])


def fail_batch_wrongly(night: Night) -> None:
    fail_wrongly(night)
    night.catalog.batches.mark("night", BatchState.RUNNING)
    night.catalog.batches.mark("night", BatchState.FAILED)


@pytest.mark.parametrize("disturb", [fail_wrongly, finish_wrongly, fail_batch_wrongly])
def test_a_rebuild_gives_the_states_of_an_undisturbed_run(
    catalog: Catalog, store: LocalStore, disturb: Callable[[Night], None]
) -> None:
    night = Night(catalog, store)
    night.undisturbed()
    night.end()
    wanted = rows(catalog)
    assert [row[1] for row in wanted[:2]].count(ClipState.DONE) == 1
    disturb(night)
    assert rows(catalog) != wanted
    rebuild(store, catalog)
    assert rows(catalog) == wanted
    rebuild(store, catalog)
    assert rows(catalog) == wanted


def test_a_clip_delivered_while_the_catalog_was_away_is_done_after_a_rebuild(
    catalog: Catalog, store: LocalStore
) -> None:
    night = Night(catalog, store)
    one, two = (clip.clip_id for clip in night.clips)
    night.attempt(StageName.PREVIEW, 1, made(one, StageName.PREVIEW), failed(two))
    night.start(StageName.MUX, 1, [night.delivers])
    night.attempt(StageName.MUX, 2, night.delivers, heard=False)
    night.catalog.runs.finish("night", [night.late])  # the catalog knows of no later attempt
    assert ClipState.FAILED in states(catalog, night.clips[:1])
    night.catalog.batches.mark("night", BatchState.FAILED)
    rebuild(store, catalog)
    assert states(catalog, night.clips) == [ClipState.DONE, ClipState.FAILED]
    record = catalog.clips.get("night", one)
    assert record is not None and record.artifact_key == night.manifest.key
    assert batch_state(catalog) is BatchState.DONE


def test_a_done_clip_whose_stage_has_not_ended_stays_done(catalog: Catalog, store: LocalStore) -> None:
    night = Night(catalog, store)
    night.attempt(StageName.MUX, 1, night.delivers, told=False)
    wanted = rows(catalog)
    rebuild(store, catalog)
    assert rows(catalog) == wanted and ClipState.DONE in states(catalog, night.clips)


def test_a_failed_clip_that_a_later_attempt_works_on_is_running_after_a_rebuild(
    catalog: Catalog, store: LocalStore
) -> None:
    night = Night(catalog, store)
    night.start(StageName.MUX, 1, [night.delivers])
    night.start(StageName.MUX, 2, [night.delivers])
    wanted = rows(catalog)
    fail_wrongly(night)
    rebuild(store, catalog)
    assert rows(catalog) == wanted


def test_a_clip_that_failed_keeps_its_failure(catalog: Catalog, store: LocalStore) -> None:
    night = Night(catalog, store)
    night.attempt(StageName.PREVIEW, 1, failed(night.clips[1].clip_id), told=False)
    wanted = rows(catalog)
    rebuild(store, catalog)
    assert rows(catalog) == wanted
