"""A batch's course in the catalog, entered while it runs; the catalog never stops a render."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from magi2.artifacts.local import LocalStore
from magi2.artifacts.manifest import ManifestDraft
from magi2.batches.batch_file import BadRow, Batch
from magi2.batches.plan import BatchOptions, BatchPlan, plan_batch, save_plan
from magi2.batches.results import write_results
from magi2.catalog import BatchState, Catalog, ClipState, RunState, StateError, open_catalog
from magi2.catalog.engine import RETRY_S
from magi2.catalog.totals import read_totals
from magi2.catalog.verify import verify
from magi2.config.load import load_profile
from magi2.config.settings import Settings
from magi2.errors import (
    CancelledError,
    ConfigError,
    CorruptedArtifactError,
    ImageError,
    InfrastructureError,
    Magi2Error,
    PausedError,
)
from magi2.jobs.recorder import SLOW_S, CatalogRecorder
from magi2.jobs.run import StageWork
from magi2.recipes.book import RecipeBook
from magi2.recipes.result import StageResult
from magi2.report.build import build_report
from magi2.runtime.events import ClipFinished, ModelsLoaded, Step
from magi2.runtime.job import StageJob
from magi2.types import Clip, StageName
from tests.batch_counts import counts_of, state_of

CONFIGS = Settings().configs
WEIGHTS = dict.fromkeys(("text_encoder", "preview", "refiner", "video_vae", "turbo_vae", "audio_vae"), "0" * 64)
TINY, NO_REFINER = load_profile("tiny", CONFIGS), load_profile("tiny-preview", CONFIGS)
BOOKS = {
    profile.digest(): RecipeBook(
        profile, fingerprints=WEIGHTS, negative_prompt="blurry", enhancement_mode="off", enhancement_model=None
    )
    for profile in (TINY, NO_REFINER)
}
CLIPS = [Clip(f"a kite {n}", n, NO_REFINER.name, NO_REFINER.digest(), names=(f"row {n}",)) for n in range(2)]
LOST, GOOD = CLIPS


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return open_catalog(f"sqlite:///{tmp_path}/catalog.sqlite")


@pytest.fixture
def recorder(store: LocalStore, catalog: Catalog, caplog: pytest.LogCaptureFixture) -> Iterator[CatalogRecorder]:
    """A recorder all of whose entries the catalog accepts."""
    yield CatalogRecorder(store, lambda: catalog)
    assert complaints(caplog.get_records("call")) == []


@pytest.fixture
def plan(store: LocalStore) -> BatchPlan:
    batch = Batch(tuple(CLIPS), (BadRow(9, "the prompt is empty"),))
    options = BatchOptions(failure_limit=2, on_bad_rows="skip")
    plan = plan_batch(batch, name="n", source="s", store=store, book_of=BOOKS.__getitem__, options=options)
    save_plan(plan, store)
    return plan


def complaints(records: Sequence[logging.LogRecord]) -> list[tuple[str, str]]:
    """Level and text of the recorder's warnings and errors."""
    loud = (record for record in records if record.levelno >= logging.WARNING)
    return [(record.levelname, record.getMessage()) for record in loud if record.name == "magi2.jobs.recorder"]


def job(plan: BatchPlan, stage: StageName, attempt: int = 1, *, is_last_try: bool = True) -> StageJob:
    return StageJob(plan.batch_id, 0, stage, "store", attempt=attempt, is_last_try=is_last_try)


def run_stage(store: LocalStore, recorder: CatalogRecorder, plan: BatchPlan, stage: StageName, tmp_path: Path) -> None:
    """The stage as its operator and worker run it: one clip is lost in encode."""
    this = job(plan, stage)
    due = StageWork.planned(this, store).clip_ids
    recorder.on_stage_start(this, due)
    results = []
    for clip in (clip for clip in CLIPS if clip.clip_id in due):
        if stage is StageName.ENCODE and clip is LOST:
            results.append(StageResult(stage, clip, "failed", 1.0, error=ImageError("broken")))
        else:
            results.append(StageResult(stage, clip, "made", 1.0, key=publish(store, clip, stage, tmp_path)))
        recorder.on_event(this, event(results[-1]))
    write_results(store, this.batch_id, this.shard, stage, this.attempt, results)


def test_where_a_shard_is_and_what_loading_took_is_in_the_catalog(
    store: LocalStore, recorder: CatalogRecorder, plan: BatchPlan, catalog: Catalog
) -> None:
    recorder.on_plan(plan)
    this = job(plan, StageName.PREVIEW)
    recorder.on_stage_start(this, [GOOD.clip_id])
    recorder.on_event(this, ModelsLoaded(12.5))
    recorder.on_event(this, Step(GOOD.clip_id, 1, 8))
    recorder.on_event(this, Step(GOOD.clip_id, 2, 8))  # so soon after the first that it is not worth a write
    (position,) = catalog.shards.positions(plan.batch_id)
    assert (position.stage, position.clip_id, position.step, position.steps) == ("preview", GOOD.clip_id, 1, 8)
    totals = read_totals(catalog.database, recent_since=position.at - timedelta(hours=1))
    assert totals.loads[StageName.PREVIEW] == 12.5


def event(result: StageResult) -> ClipFinished:
    code, text = (result.error.code, str(result.error)) if result.error else (None, None)
    state, key = result.state, result.key
    return ClipFinished(result.clip.clip_id, state, key, 1.0, error_code=code, error=text, accelerator_seconds=1.0)


def publish(store: LocalStore, clip: Clip, stage: StageName, tmp_path: Path) -> str:
    book = BOOKS[clip.profile_digest]
    recipe = book.enhance(clip) if stage is StageName.ENHANCE else book.chain(clip, clip.prompt)[stage]
    path = tmp_path / "payload"
    if stage is StageName.ENCODE and book.negative:
        path.write_bytes(b"negative")
        store.publish(ManifestDraft(book.negative), {"payload": path})
    path.write_bytes(b"payload")
    return store.publish(ManifestDraft(recipe), {"payload": path}).key


def test_course_of_a_batch_is_in_the_catalog(
    store: LocalStore, recorder: CatalogRecorder, plan: BatchPlan, catalog: Catalog, tmp_path: Path
) -> None:
    recorder.on_plan(plan)
    assert catalog.batches.refused_rows(plan.batch_id) == {9: "the prompt is empty"}
    for stage in NO_REFINER.stages:
        run_stage(store, recorder, plan, stage, tmp_path)
        batch = catalog.batches.get(plan.batch_id)
        assert batch is not None
        assert batch.state is BatchState.RUNNING
    recorder.on_report(build_report(store, plan.batch_id))
    counts = counts_of(catalog, plan.batch_id)
    assert state_of(catalog, plan.batch_id) is BatchState.DONE
    assert (counts.clips.done, counts.clips.failed) == (1, 1)
    assert counts.accelerator_seconds == 7.0  # two clips to encode, then one
    lost = catalog.clips.get(plan.batch_id, LOST.clip_id)
    assert lost is not None
    assert (lost.failed_stage, lost.reason) == (StageName.ENCODE, "broken")
    assert list(verify(store, catalog, digests=True)) == []


@pytest.mark.parametrize(
    ("error", "state"),
    [(InfrastructureError("disk full"), RunState.FAILED), (CancelledError("stopped"), RunState.CANCELLED)],
)
def test_stage_that_ends_early_keeps_what_it_had_finished(
    recorder: CatalogRecorder, plan: BatchPlan, catalog: Catalog, error: Exception, state: RunState
) -> None:
    recorder.on_plan(plan)
    this = job(plan, StageName.PREVIEW)
    recorder.on_stage_start(this, [clip.clip_id for clip in CLIPS])
    recorder.on_event(this, event(StageResult(this.stage, GOOD, "reused", 0.1, key=None)))
    recorder.on_stage_end(this, error)  # type: ignore[arg-type]
    (good,), (lost,) = (catalog.runs.of_clip(plan.batch_id, clip.clip_id) for clip in (GOOD, LOST))
    assert (good.state, lost.state, lost.error) == (RunState.REUSED, state, str(error))


@pytest.mark.parametrize("is_told", [True, False])
def test_clip_with_a_fault_that_may_pass_waits_until_the_last_try_and_keeps_what_it_took(
    recorder: CatalogRecorder, plan: BatchPlan, catalog: Catalog, is_told: bool
) -> None:
    recorder.on_plan(plan)
    for attempt, is_last_try in ((1, False), (2, True)):
        this = job(plan, StageName.PREVIEW, attempt, is_last_try=is_last_try)
        recorder.on_stage_start(this, [LOST.clip_id])
        full = InfrastructureError("store is full")
        if is_told:
            recorder.on_event(this, event(StageResult(this.stage, LOST, "failed", 1.0, error=full)))
        recorder.on_stage_end(this, full)
        record = catalog.clips.get(plan.batch_id, LOST.clip_id)
        assert record is not None
        expected = (ClipState.FAILED, this.stage) if is_last_try else (ClipState.WAITING, None)
        assert (record.state, record.failed_stage, record.reason) == (*expected, "store is full")
        charged = 1 + (is_last_try and is_told)  # with the row of the batch file that was refused
        assert catalog.batches.lost_clips(plan.batch_id) == charged
    runs = catalog.runs.of_clip(plan.batch_id, LOST.clip_id)
    assert [(run.attempt, run.state) for run in runs] == [(1, RunState.FAILED), (2, RunState.FAILED)]
    assert counts_of(catalog, plan.batch_id).accelerator_seconds == (2.0 if is_told else 0.0)


def test_clip_with_a_fault_that_no_try_mends_has_failed_at_once(
    recorder: CatalogRecorder, plan: BatchPlan, catalog: Catalog
) -> None:
    recorder.on_plan(plan)
    this = job(plan, StageName.PREVIEW, is_last_try=False)
    recorder.on_stage_start(this, [LOST.clip_id])
    recorder.on_event(this, event(StageResult(this.stage, LOST, "failed", 1.0, error=ImageError("broken"))))
    record = catalog.clips.get(plan.batch_id, LOST.clip_id)
    assert record is not None
    assert (record.state, record.failed_stage) == (ClipState.FAILED, StageName.PREVIEW)


def test_clips_not_begun_before_a_pause_are_waiting(
    recorder: CatalogRecorder, plan: BatchPlan, catalog: Catalog
) -> None:
    recorder.on_plan(plan)
    this = job(plan, StageName.PREVIEW)
    recorder.on_stage_start(this, [clip.clip_id for clip in CLIPS])
    recorder.on_event(this, event(StageResult(this.stage, GOOD, "made", 0.1, key=None)))
    recorder.on_stage_end(this, PausedError("paused"))
    clip = catalog.clips.get(plan.batch_id, LOST.clip_id)
    assert clip is not None
    assert (clip.state, catalog.runs.of_clip(plan.batch_id, LOST.clip_id)) == (ClipState.WAITING, [])
    assert catalog.runs.of_clip(plan.batch_id, GOOD.clip_id)[0].state is RunState.MADE


def test_next_attempt_takes_up_a_failed_clip(recorder: CatalogRecorder, plan: BatchPlan, catalog: Catalog) -> None:
    recorder.on_plan(plan)
    recorder.on_stage_start(job(plan, StageName.PREVIEW), [GOOD.clip_id])
    recorder.on_stage_end(job(plan, StageName.PREVIEW), InfrastructureError("disk full"))
    recorder.on_stage_start(job(plan, StageName.PREVIEW, attempt=2), [GOOD.clip_id])
    clip = catalog.clips.get(plan.batch_id, GOOD.clip_id)
    assert clip is not None
    assert clip.state is ClipState.RUNNING


def test_report_made_again_after_a_repair_turns_failed_into_done(
    store: LocalStore, recorder: CatalogRecorder, plan: BatchPlan, catalog: Catalog, tmp_path: Path
) -> None:
    recorder.on_plan(plan)
    recorder.on_report(build_report(store, plan.batch_id))  # nothing has run: two clips and a row failed
    batch = catalog.batches.get(plan.batch_id)
    assert batch is not None
    assert batch.state is BatchState.FAILED
    for stage in NO_REFINER.stages:
        run_stage(store, recorder, plan, stage, tmp_path)
    recorder.on_report(build_report(store, plan.batch_id))
    batch = catalog.batches.get(plan.batch_id)
    assert batch is not None
    assert batch.state is BatchState.DONE


def test_clip_whose_file_a_killed_worker_left_is_done(
    store: LocalStore, recorder: CatalogRecorder, plan: BatchPlan, catalog: Catalog, tmp_path: Path
) -> None:
    recorder.on_plan(plan)
    *before, mux = NO_REFINER.stages
    for stage in before:
        run_stage(store, recorder, plan, stage, tmp_path)
    this = job(plan, mux)
    recorder.on_stage_start(this, [GOOD.clip_id])
    key = publish(store, GOOD, mux, tmp_path)
    recorder.on_stage_end(this, CancelledError("ended"))
    recorder.on_report(build_report(store, plan.batch_id))
    record = catalog.clips.get(plan.batch_id, GOOD.clip_id)
    assert record is not None
    assert (record.state, record.artifact_key, record.shard) == (ClipState.DONE, key, 0)
    assert list(verify(store, catalog, digests=True)) == []


def test_finished_clips_are_done_from_the_start(
    store: LocalStore, recorder: CatalogRecorder, catalog: Catalog, tmp_path: Path
) -> None:
    from magi2.prompts.caption import Caption

    path = tmp_path / "caption.json"
    path.write_bytes(Caption(GOOD.prompt, mode_requested="off", mode_used="off").to_json())
    store.publish(ManifestDraft(BOOKS[GOOD.profile_digest].enhance(GOOD)), {"caption.json": path})
    publish(store, GOOD, StageName.MUX, tmp_path)
    batch = Batch((GOOD,), ())
    plan = plan_batch(batch, name="n", source="s", store=store, book_of=BOOKS.__getitem__, options=BatchOptions())
    save_plan(plan, store)
    recorder.on_plan(plan)
    recorder.on_report(build_report(store, plan.batch_id))
    assert state_of(catalog, plan.batch_id) is BatchState.DONE
    assert counts_of(catalog, plan.batch_id).clips.done == 1


def test_catalog_that_is_away_is_told_of_once_and_stops_nothing(
    store: LocalStore, plan: BatchPlan, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def unreachable() -> Catalog:
        raise InfrastructureError("catalog db.example: connection refused")

    recorder = CatalogRecorder(store, unreachable, clock=lambda: 7.0)
    recorder.on_plan(plan)
    for stage in NO_REFINER.stages:
        run_stage(store, recorder, plan, stage, tmp_path)
    recorder.on_report(build_report(store, plan.batch_id))
    assert recorder.cost(plan.batch_id, None) is None
    ((level, text),) = complaints(caplog.records)
    assert (level, "connection refused" in text) == ("WARNING", True)


@pytest.mark.parametrize("error", [InfrastructureError("refused"), ConfigError("no such table")])
def test_catalog_that_is_back_is_entered_into_again(
    store: LocalStore, plan: BatchPlan, catalog: Catalog, caplog: pytest.LogCaptureFixture, error: Magi2Error
) -> None:
    now, faults = [0.0], [error]

    def reach() -> Catalog:
        if faults:
            raise faults.pop()
        return catalog

    recorder = CatalogRecorder(store, reach, clock=lambda: now[0])
    recorder.on_plan(plan)
    now[0] = RETRY_S - 1
    recorder.on_plan(plan)
    assert catalog.batches.get(plan.batch_id) is None  # not asked again so soon
    now[0] = RETRY_S
    recorder.on_plan(plan)
    assert catalog.batches.get(plan.batch_id) is not None
    assert [level for level, _ in complaints(caplog.records)] == ["WARNING"]


def test_catalog_that_takes_its_time_is_let_be_for_a_while(
    store: LocalStore, plan: BatchPlan, catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]

    def reach() -> Catalog:
        now[0] += SLOW_S + 1
        return catalog

    recorder = CatalogRecorder(store, reach, clock=lambda: now[0])
    recorder.on_plan(plan)
    recorder.on_stage_start(job(plan, StageName.ENCODE), [LOST.clip_id])
    assert catalog.runs.of_clip(plan.batch_id, LOST.clip_id) == []
    now[0] += RETRY_S
    recorder.on_stage_start(job(plan, StageName.ENCODE), [LOST.clip_id])
    assert len(catalog.runs.of_clip(plan.batch_id, LOST.clip_id)) == 1
    assert [text.endswith("an entry took 16 s") for _, text in complaints(caplog.records)] == [True]


@pytest.mark.parametrize("error", [StateError("no such clip"), CorruptedArtifactError("mux/1: no manifest")])
def test_entry_that_is_not_accepted_is_an_error_each_time_and_the_next_is_entered(
    store: LocalStore, plan: BatchPlan, catalog: Catalog, caplog: pytest.LogCaptureFixture, error: Magi2Error
) -> None:
    faults = [error, error]

    def reach() -> Catalog:
        if faults:
            raise faults.pop()
        return catalog

    recorder = CatalogRecorder(store, reach)
    for _ in range(3):
        recorder.on_plan(plan)
    assert catalog.batches.get(plan.batch_id) is not None
    told = complaints(caplog.records)
    assert [level for level, _ in told] == ["ERROR", "ERROR"] and all(str(error) in text for _, text in told)


def test_result_that_the_catalog_refuses_does_not_hide_those_after_it(
    store: LocalStore, plan: BatchPlan, catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    recorder, this = CatalogRecorder(store, lambda: catalog), job(plan, StageName.PREVIEW)
    recorder.on_plan(plan)
    recorder.on_stage_start(this, ["f" * 64, GOOD.clip_id])  # the first is no clip of the batch
    recorder.on_event(this, ClipFinished("f" * 64, "made", None, 1.0))
    recorder.on_event(this, event(StageResult(this.stage, GOOD, "made", 0.1, key=None)))
    assert [level for level, _ in complaints(caplog.records)] == ["ERROR", "ERROR"]
    assert catalog.runs.of_clip(plan.batch_id, GOOD.clip_id)[0].state is RunState.MADE
