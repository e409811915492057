"""Permission to go on: what is asked of a batch is obeyed, and a catalog that is away stops what has a budget only."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from magi2.artifacts.local import LocalStore
from magi2.catalog import Actor, BatchState, Catalog, NewBatch, PlannedClip, Run, RunState, open_catalog
from magi2.catalog.engine import RETRY_S
from magi2.catalog.gate import CancelCheck, check_may_start
from magi2.config.settings import Settings
from magi2.errors import (
    BatchCancelledError,
    BudgetSpentError,
    ConfigError,
    InfrastructureError,
    PausedError,
    StoppedError,
)
from magi2.types import Clip, StageName
from tests.catalog.catalog_samples import StoredPlan

ANN = Actor("1", "ann")
PROFILE = "a" * 64
EARLY = [StageName.ENHANCE, StageName.ENCODE, StageName.PREVIEW]


class Night:
    """A running batch of two shards with one clip each; an hour of an accelerator costs 3,600."""

    def __init__(self, folder: Path, budget: float | None = None) -> None:
        self.store = LocalStore(folder / "store")
        self.settings = Settings(store=str(self.store.root), price_per_accelerator_hour=3600.0, currency="EUR")
        self.catalog: Catalog = open_catalog(f"sqlite:///{self.store.root}/catalog.sqlite")
        self.clip_ids = self.add("night", budget=budget)

    def add(self, batch_id: str, **values: float | None) -> list[str]:
        clips = [Clip(f"{batch_id} {number}", number, "1080p", PROFILE) for number in range(2)]
        self.catalog.batches.create(
            NewBatch(batch_id=batch_id, name=batch_id, source="s", clips_total=2, **values),  # type: ignore[arg-type]
            {PROFILE: {}},
        )
        self.catalog.clips.add(batch_id, [PlannedClip(clip, number) for number, clip in enumerate(clips)])
        self.catalog.batches.mark(batch_id, BatchState.RUNNING)
        options = {"failure_limit": 0, "on_bad_rows": "refuse", "budget": values.get("budget")}
        StoredPlan(self.store, batch_id).save([], options=options)
        return [clip.clip_id for clip in clips]

    def spend(self, shard: int, stage: StageName, accelerator_seconds: float) -> None:
        run = Run(clip_id=self.clip_ids[shard], stage=stage, state=RunState.MADE, shard=shard)
        self.catalog.runs.finish("night", [Run(**{**vars(run), "accelerator_seconds": accelerator_seconds})])

    def ask(self, stage: StageName = StageName.PREVIEW, shard: int = 1, settings: Settings | None = None) -> None:
        check_may_start(settings or self.settings, self.store, "night", shard, stage)


def test_paused_batch_waits_at_every_stage_until_it_is_resumed(tmp_path: Path) -> None:
    night = Night(tmp_path)
    night.catalog.control.pause("night", by=ANN)
    for stage in (StageName.ENHANCE, StageName.PREVIEW, StageName.MUX):
        with pytest.raises(PausedError, match="night is paused"):
            night.ask(stage)
    night.catalog.control.resume("night", by=ANN)
    night.ask()


def test_cancelled_batch_starts_nothing_until_it_is_run_again(tmp_path: Path) -> None:
    night = Night(tmp_path)
    night.catalog.control.cancel("night", by=ANN)
    with pytest.raises(BatchCancelledError, match="night was cancelled"):
        night.ask(StageName.MUX)
    night.catalog.batches.mark("night", BatchState.CANCELLED)
    night.ask(StageName.MUX)


def test_spent_budget_starts_no_further_shard_and_finishes_those_that_have_begun(tmp_path: Path) -> None:
    night = Night(tmp_path, budget=10.0)
    night.spend(0, StageName.PREVIEW, 9.99)
    night.ask()
    night.spend(0, StageName.REFINE, 0.01)
    for stage in EARLY:
        with pytest.raises(BudgetSpentError, match=r"budget: 10\.00 EUR of 10\.00 EUR spent"):
            night.ask(stage)
    night.ask(StageName.DECODE)
    for stage in EARLY:
        night.ask(stage, shard=0)
    night.catalog.control.set_budget("night", 20.0, by=ANN)
    night.ask()


def test_budget_is_not_watched_without_a_price(tmp_path: Path) -> None:
    night = Night(tmp_path, budget=10.0)
    with pytest.raises(ConfigError, match="needs a price"):
        night.ask(settings=Settings(store=night.settings.store))


def test_shard_that_has_not_begun_lets_a_more_urgent_batch_go_first(tmp_path: Path) -> None:
    night = Night(tmp_path)
    night.add("urgent", priority=1)
    for stage in EARLY:
        with pytest.raises(PausedError, match="urgent of higher priority goes first"):
            night.ask(stage)
    night.ask(StageName.DECODE)
    night.spend(1, StageName.PREVIEW, 1.0)
    night.ask(StageName.PREVIEW)
    night.catalog.control.set_priority("night", 1, by=ANN)
    night.ask(shard=0)


def away(night: Night) -> Settings:
    return Settings(store=night.settings.store, catalog="postgresql+psycopg2://nobody@127.0.0.1:1/none")


def test_catalog_that_is_away_stops_what_has_a_budget_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    night = Night(tmp_path)
    with caplog.at_level(logging.WARNING):
        night.ask(settings=away(night))
    assert "without knowing what is asked of batch night" in caplog.text
    options = {"failure_limit": 0, "on_bad_rows": "refuse", "budget": 5.0}
    StoredPlan(night.store).save([], options=options)
    with pytest.raises(InfrastructureError):
        night.ask(settings=away(night))


def test_batch_that_the_catalog_does_not_know_goes_on(tmp_path: Path) -> None:
    night = Night(tmp_path)
    check_may_start(night.settings, night.store, "unknown", 0, StageName.PREVIEW)


def test_wishes_are_heard_between_clips(tmp_path: Path) -> None:
    night = Night(tmp_path)
    between = CancelCheck(night.settings, "night")
    between.check()
    night.catalog.control.pause("night", by=ANN)
    with pytest.raises(PausedError):
        between.check()
    night.catalog.control.cancel("night", by=ANN)
    with pytest.raises(BatchCancelledError):
        between.check()


def test_worker_goes_on_without_the_catalog_and_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    between = CancelCheck(away(Night(tmp_path)), "night")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            between.check()
    assert caplog.text.count("cannot hear what is asked of batch night") == 1


def test_wish_is_heard_once_the_catalog_is_back(tmp_path: Path) -> None:
    night, now = Night(tmp_path), [0.0]
    night.catalog.control.pause("night", by=ANN)
    file = Path(str(night.catalog.database.url.database))
    night.catalog.close()
    hidden = file.rename(file.with_name("hidden"))
    file.mkdir()
    between = CancelCheck(night.settings, "night", clock=lambda: now[0])
    between.check()
    file.rmdir()
    hidden.rename(file)
    between.check()  # not asked again so soon
    now[0] = RETRY_S
    with pytest.raises(PausedError):
        between.check()


def test_passed_limit_starts_nothing_more_until_it_is_raised(tmp_path: Path) -> None:
    night = Night(tmp_path)
    night.add("day", failure_limit=1, on_limit="stop")  # type: ignore[arg-type]
    one, _ = night.add("dusk", failure_limit=1, on_limit="stop")  # type: ignore[arg-type]

    def may_go_on() -> None:
        check_may_start(night.settings, night.store, "dusk", 1, StageName.MUX)
        CancelCheck(night.settings, "dusk").check()

    night.catalog.batches.refuse_rows("dusk", {7: "the prompt is empty"})
    may_go_on()
    run = Run(clip_id=one, stage=StageName.ENCODE, state=RunState.FAILED, shard=0, seconds=1.0)
    night.catalog.runs.finish("dusk", [run])
    with pytest.raises(StoppedError, match="dusk: 2 failed of at most 1: stopped"):
        check_may_start(night.settings, night.store, "dusk", 1, StageName.MUX)
    with pytest.raises(StoppedError, match="raise its failure limit"):
        CancelCheck(night.settings, "dusk").check()
    check_may_start(night.settings, night.store, "day", 1, StageName.MUX)
    night.catalog.control.set_limit("dusk", 2, by=ANN)
    may_go_on()


def test_limit_that_stops_nothing_lets_the_rest_be_rendered(tmp_path: Path) -> None:
    night = Night(tmp_path)
    runs = [Run(clip_id=each, stage=StageName.ENCODE, state=RunState.FAILED) for each in night.clip_ids]
    night.catalog.runs.finish("night", runs)
    night.ask()
    CancelCheck(night.settings, "night").check()


def test_a_limit_that_was_raised_is_not_lowered_by_planning_anew(tmp_path: Path) -> None:
    night = Night(tmp_path)
    new = NewBatch(batch_id="dusk", name="n", source="s", clips_total=2, failure_limit=1, on_limit="stop")

    def limit() -> int:
        found = night.catalog.batches.get("dusk")
        assert found is not None
        return found.failure_limit

    night.catalog.batches.create(new, {})
    night.catalog.control.set_limit("dusk", 5, by=ANN)
    night.catalog.batches.create(new, {})
    assert limit() == 5
    night.catalog.batches.create(replace(new, failure_limit=9), {})
    assert limit() == 9, "a command that is called again with a higher one"
