"""Wishes for a running batch: kept until it runs again, and each in the log with who and when."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest

from magi2.artifacts import LocalStore
from magi2.catalog import Action, Actor, BatchState, Catalog, ClipState, Request, Run, RunState, StateError
from magi2.catalog.gate import admission_state, requested
from magi2.errors import InputError
from magi2.types import StageName
from tests.catalog.catalog_samples import PROFILES, done, enter, failed, make_batch, make_clip, publish

ANN, ZOE = Actor("1", "ann"), Actor("2", "Zoë 🌊")


@pytest.fixture
def night(catalog: Catalog) -> str:
    catalog.batches.create(make_batch(), PROFILES)
    return "night"


def entered_request(catalog: Catalog) -> Request | None:
    found = catalog.batches.get("night")
    assert found is not None
    return found.requested


def test_wishes_are_kept_until_the_batch_runs_again(catalog: Catalog, night: str) -> None:
    catalog.control.pause(night, by=ANN)
    assert entered_request(catalog) is Request.PAUSE
    catalog.control.resume(night, by=ANN)
    assert entered_request(catalog) is None
    catalog.control.pause(night, by=ANN)
    catalog.control.cancel(night, by=ANN)
    assert entered_request(catalog) is Request.CANCEL
    for ask in (catalog.control.resume, catalog.control.pause):
        with pytest.raises(StateError, match="was asked to cancel"):
            ask(night, by=ANN)
    catalog.batches.mark(night, BatchState.RUNNING)  # it had not begun: the wish still counts
    assert entered_request(catalog) is Request.CANCEL
    catalog.batches.mark(night, BatchState.CANCELLED)
    with pytest.raises(StateError, match="too late to cancel"):
        catalog.control.cancel(night, by=ANN)
    catalog.batches.mark(night, BatchState.RUNNING)
    assert entered_request(catalog) is None


def test_every_wish_is_in_the_log_with_who_and_when(catalog: Catalog, night: str) -> None:
    before = datetime.now(UTC)
    catalog.control.pause(night, by=ANN)
    catalog.control.set_priority(night, -3, by=ZOE)
    catalog.control.set_budget(night, 12.5, by=ANN)
    catalog.control.set_budget(night, None, by=ANN)
    catalog.control.note(night, Action.RERUN, {"from": "refine", "new_batch_id": "b2"}, by=ZOE)
    page = catalog.control.actions(night)
    assert [(entry.action, entry.arguments, entry.by) for entry in page.rows] == [
        (Action.RERUN, {"from": "refine", "new_batch_id": "b2"}, ZOE),
        (Action.SET_BUDGET, {"budget": None}, ANN),
        (Action.SET_BUDGET, {"budget": 12.5}, ANN),
        (Action.SET_PRIORITY, {"priority": -3}, ZOE),
        (Action.PAUSE, {}, ANN),
    ]
    assert all(before <= entry.at <= datetime.now(UTC) for entry in page.rows)
    assert page.total == 5
    assert catalog.control.actions(night, offset=4, limit=3).rows == page.rows[4:]


def test_refused_wish_leaves_no_line_in_the_log(catalog: Catalog, night: str) -> None:
    catalog.batches.mark(night, BatchState.FAILED)
    for ask in (catalog.control.pause, catalog.control.resume, catalog.control.cancel):
        with pytest.raises(StateError, match="is failed: too late"):
            ask(night, by=ANN)
    assert catalog.control.actions(night).total == 0


@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan"), float("inf")])
def test_budget_that_cannot_be_spent_is_refused(catalog: Catalog, night: str, budget: float) -> None:
    with pytest.raises(InputError, match="budget is"):
        catalog.control.set_budget(night, budget, by=ANN)


def test_absent_batch_can_be_asked_for_nothing(catalog: Catalog) -> None:
    for call in (
        lambda: catalog.control.pause("nigth", by=ANN),
        lambda: catalog.control.set_priority("nigth", 1, by=ANN),
        lambda: catalog.control.note("nigth", Action.RERUN, {}, by=ANN),
    ):
        with pytest.raises(StateError, match="no batch 'nigth'"):
            call()


def test_planning_again_keeps_priority_and_budget_that_people_set(catalog: Catalog) -> None:
    catalog.batches.create(make_batch(priority=1, budget=5.0), PROFILES)
    catalog.control.set_priority("night", 9, by=ANN)
    catalog.control.set_budget("night", 7.0, by=ANN)
    catalog.batches.create(make_batch(priority=1, budget=5.0), PROFILES)
    found = catalog.batches.get("night")
    assert found is not None
    assert (found.priority, found.budget) == (9, 7.0)


def test_what_a_batch_took_counts_every_attempt(catalog: Catalog) -> None:
    one, two = enter(catalog, [make_clip(1), make_clip(2)])
    catalog.runs.finish("night", [failed(one, accelerator_seconds=8.0), failed(two, accelerator_seconds=None)])
    made = {"state": RunState.MADE, "attempt": 2}
    catalog.runs.finish("night", [Run(clip_id=one, stage=StageName.PREVIEW, accelerator_seconds=16.0, **made)])
    catalog.runs.finish("night", [Run(clip_id=two, stage=StageName.ENCODE, accelerator_seconds=1.0, **made)])
    assert catalog.runs.accelerator_seconds("night") == {
        (one, StageName.PREVIEW): 24.0,
        (two, StageName.ENCODE): 1.0,
    }
    assert catalog.batches.accelerator_seconds(["night", "other"]) == {"night": 25.0, "other": 0.0}


def test_people_are_told_once_until_it_happens_again(catalog: Catalog) -> None:
    assert [catalog.notices.is_first("stalled", "night") for _ in range(3)] == [True, False, False]
    assert catalog.notices.is_first("stalled", "day")
    assert catalog.notices.is_first("finished", "night")
    catalog.notices.forget("stalled", "night")
    assert catalog.notices.is_first("stalled", "night")


def test_of_several_at_once_one_tells(catalog: Catalog) -> None:
    told: list[bool] = []
    threads = [
        threading.Thread(target=lambda: told.append(catalog.notices.is_first("finished", "night"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(told) == [False, False, False, True]


def ahead(catalog: Catalog, batch_id: str, stage: StageName = StageName.PREVIEW) -> str | None:
    state = admission_state(catalog, batch_id, 0, stage)
    assert state is not None
    return state.ahead


def test_waiting_clips_of_a_more_urgent_batch_go_first(catalog: Catalog) -> None:
    enter(catalog, [make_clip(1)], "night")
    urgent = enter(catalog, [make_clip(2), make_clip(3)], "urgent", priority=5)
    assert ahead(catalog, "night") is None  # it has not been planned to its end
    catalog.batches.mark("urgent", BatchState.RUNNING)
    assert (ahead(catalog, "night"), ahead(catalog, "urgent")) == ("urgent", None)
    catalog.control.pause("urgent", by=ANN)
    assert ahead(catalog, "night") is None
    catalog.control.resume("urgent", by=ANN)
    catalog.runs.start("urgent", StageName.ENCODE, urgent, attempt=1)
    assert ahead(catalog, "night") is None  # all its clips are at work
    encoded = {"stage": StageName.ENCODE, "state": RunState.MADE}
    catalog.runs.finish("urgent", [Run(clip_id=clip_id, **encoded) for clip_id in urgent])
    assert ahead(catalog, "night") == "urgent"
    assert ahead(catalog, "night", StageName.ENCODE) is None  # it waits for a later stage
    catalog.runs.start("urgent", StageName.PREVIEW, urgent, attempt=1)
    assert ahead(catalog, "night") is None


def test_equal_priorities_and_finished_clips_hold_nobody_up(catalog: Catalog, store: LocalStore) -> None:
    enter(catalog, [make_clip(1)], "night", priority=5)
    enter(catalog, [make_clip(2)], "equal", priority=5)
    (finished,) = enter(catalog, [make_clip(3)], "urgent", priority=6)
    manifest = publish(store)
    catalog.artifacts.index([manifest])
    catalog.runs.finish("urgent", [done(finished, manifest)])
    for batch_id in ("equal", "urgent"):
        catalog.batches.mark(batch_id, BatchState.RUNNING)
    assert ahead(catalog, "night") is None


def test_admission_state_says_what_was_asked_and_spent(catalog: Catalog) -> None:
    (clip_id,) = enter(catalog, [make_clip(1)], budget=3.5)
    assert admission_state(catalog, "nigth", 0, StageName.ENCODE) is None
    catalog.runs.finish("night", [failed(clip_id, accelerator_seconds=7.0)])
    catalog.control.pause("night", by=ANN)
    begun, other = (admission_state(catalog, "night", shard, StageName.ENCODE) for shard in (0, 1))
    assert begun is not None and other is not None
    assert (begun.requested, begun.budget, begun.accelerator_seconds) == (Request.PAUSE, 3.5, 7.0)
    assert (begun.has_begun, other.has_begun) == (True, False)


def test_wishes_for_a_batch_that_had_finished_are_history(catalog: Catalog, night: str) -> None:
    catalog.control.cancel(night, by=ANN)
    assert requested(catalog, night) is Request.CANCEL
    catalog.batches.mark(night, BatchState.CANCELLED)
    assert requested(catalog, night) is None
    assert requested(catalog, "nigth") is None


def test_withdrawn_clips_are_waiting_and_start_anew(catalog: Catalog) -> None:
    made, begun = enter(catalog, [make_clip(1), make_clip(2)])
    catalog.runs.start("night", StageName.PREVIEW, [made, begun], attempt=1)
    run = Run(clip_id=made, stage=StageName.PREVIEW, state=RunState.MADE, seconds=2.0, accelerator_seconds=16.0)
    catalog.runs.finish("night", [run])
    catalog.runs.withdraw("night", StageName.PREVIEW, [begun], attempt=1)
    clip = catalog.clips.get("night", begun)
    assert clip is not None
    assert (clip.state, catalog.runs.of_clip("night", begun)) == (ClipState.WAITING, [])
    catalog.runs.start("night", StageName.PREVIEW, [made, begun], attempt=1)
    catalog.runs.finish("night", [Run(clip_id=made, stage=StageName.PREVIEW, state=RunState.REUSED, seconds=0.0)])
    (kept,) = catalog.runs.of_clip("night", made)
    assert (kept.state, kept.accelerator_seconds) == (RunState.MADE, 16.0)
    assert catalog.runs.of_clip("night", begun)[0].state is RunState.RUNNING


def test_clips_are_set_aside_whatever_became_of_them_but_done_ones(catalog: Catalog, store: LocalStore) -> None:
    finished, broken, waiting = enter(catalog, [make_clip(1), make_clip(2), make_clip(3)])
    manifest = publish(store)
    catalog.artifacts.index([manifest])
    catalog.runs.finish("night", [done(finished, manifest), failed(broken)])
    catalog.clips.set_aside("night", [finished, broken, waiting], ClipState.SKIPPED, "budget: all spent")
    clips = [catalog.clips.get("night", clip_id) for clip_id in (finished, broken, waiting)]
    assert [clip and (clip.state, clip.reason) for clip in clips] == [
        (ClipState.DONE, None),
        (ClipState.SKIPPED, "budget: all spent"),
        (ClipState.SKIPPED, "budget: all spent"),
    ]
