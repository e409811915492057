"""`magi2 status`, the report, the page and the metrics say the same of one batch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import typer
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from magi2.artifacts.local import LocalStore
from magi2.batches.batch_file import BadRow, Batch
from magi2.batches.failures import save_failure
from magi2.batches.plan import BatchOptions, BatchPlan, plan_batch, save_plan
from magi2.batches.results import write_results
from magi2.catalog import ClipState, Run, RunState, open_catalog
from magi2.catalog.cost import BatchCost
from magi2.catalog.rebuild import rebuild
from magi2.cli.status import status_command
from magi2.config.price import Price
from magi2.config.settings import Settings
from magi2.errors import BatchCancelledError, BudgetSpentError, ImageError
from magi2.recipes.result import StageResult
from magi2.report.build import build_report, save_report
from magi2.types import Clip, StageName
from tests.operators.renders.renders_site import Site, client, deployment_on, served
from tests.report_samples import BOOKS, NO_REFINER, TINY, clip, deliver, publish_files

PRICE = Price(36.0, "EUR")
CLIPS = {
    "good": clip(1),
    "flagged": clip(2, prompt="fallback"),
    "lost": clip(3),
    "elsewhere": clip(4, NO_REFINER),
    "resumed": clip(5),
    "over budget": clip(6),
    "cancelled": clip(7),
    "running": clip(8),
    "found": clip(9),
}
FIRST = (StageName.ENHANCE, StageName.ENCODE, StageName.PREVIEW)


@dataclass(frozen=True)
class Rendering:
    """A batch that is told to store and catalog as its stages tell it: a shard for each clip."""

    site: Site
    plan: BatchPlan

    @property
    def store(self) -> LocalStore:
        store = self.site.deployment.store
        assert isinstance(store, LocalStore)
        return store

    def shard_of(self, clip: Clip) -> int:
        return next(shard.number for shard in self.plan.shards if clip in shard.clips)

    def start(self, name: str, stage: StageName) -> None:
        clip = CLIPS[name]
        self.site.catalog.runs.start(self.plan.batch_id, stage, [clip.clip_id], attempt=1, shard=self.shard_of(clip))

    def tell(self, name: str, stage: StageName, state: str = "made", *, attempt: int = 1) -> None:
        """A stage of a clip has ended: 2 seconds on 4 ranks if it made something, none if it found it."""
        clip, catalog = CLIPS[name], self.site.catalog
        shard, seconds = self.shard_of(clip), 0.0 if state == "reused" else 2.0
        key = publish_files(self.store, clip, {}) if stage is StageName.MUX else f"{stage} of {name}"
        result = StageResult(stage, clip, state, seconds, key)  # type: ignore[arg-type]
        if state == "failed":
            result = replace(result, key=None, error=ImageError("broken"))
        elif name == "flagged" and stage is StageName.ENHANCE:
            result = replace(result, flags=("enhancement_fallback",))
        write_results(self.store, self.plan.batch_id, shard, stage, attempt, [result])
        if stage is StageName.MUX and (manifest := self.store.find(stage, key)):
            catalog.artifacts.index([manifest])
        run = Run(
            clip_id=clip.clip_id,
            stage=stage,
            state=RunState(state),
            attempt=attempt,
            shard=shard,
            seconds=seconds,
            accelerator_seconds=4 * seconds,
            error="broken" if state == "failed" else None,
            artifact_key=result.key,
            flags=result.flags,
        )
        catalog.runs.finish(self.plan.batch_id, [run])

    def set_aside(self, name: str, error: BudgetSpentError | BatchCancelledError, state: ClipState) -> None:
        clip = CLIPS[name]
        save_failure(self.store, self.plan.batch_id, self.shard_of(clip), StageName.PREVIEW, error)
        self.site.catalog.clips.set_aside(self.plan.batch_id, [clip.clip_id], state, str(error))


@pytest.fixture
def rendering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rendering]:
    """A batch with a clip in every state, one that was interrupted, and one that another batch made meanwhile."""
    store, catalog = LocalStore(tmp_path / "store"), open_catalog(f"sqlite:///{tmp_path}/store/catalog.sqlite")
    deliver(store, CLIPS["found"], tmp_path)
    batch = Batch(tuple(CLIPS.values()), (BadRow(10, "the prompt is empty"),))
    options = BatchOptions(on_bad_rows="skip")
    book_of = BOOKS.__getitem__
    plan = plan_batch(batch, name="n", source="s", store=store, book_of=book_of, options=options, clips_per_shard=1)
    save_plan(plan, store)
    rebuild(store, catalog)
    for name, value in (("STORE", store.root), ("PRICE_PER_ACCELERATOR_HOUR", 36.0), ("CURRENCY", "EUR")):
        monkeypatch.setenv(f"MAGI2_{name}", str(value))
    monkeypatch.delenv("MAGI2_CATALOG", raising=False)
    site = Site(deployment_on(Settings.from_environment(), catalog, store), CLIPS, {})
    rendering = Rendering(site, plan)
    render(rendering)
    with served(site):
        yield rendering
    catalog.close()


def render(rendering: Rendering) -> None:
    for name in ("good", "flagged"):
        for stage in TINY.stages:
            rendering.tell(name, stage)
    for stage in NO_REFINER.stages:
        rendering.tell("elsewhere", stage, "reused")
    for stage in FIRST:
        rendering.tell("resumed", stage)
        rendering.tell("resumed", stage, "reused", attempt=2)
    for stage in TINY.stages[len(FIRST) :]:
        rendering.tell("resumed", stage, attempt=2)
    for name in ("lost", "over budget", "cancelled", "running"):
        rendering.tell(name, StageName.ENHANCE)
    for name in ("over budget", "cancelled"):
        rendering.tell(name, StageName.ENCODE)
    rendering.tell("lost", StageName.ENCODE, "failed")
    rendering.set_aside("over budget", BudgetSpentError("spent"), ClipState.SKIPPED)
    rendering.set_aside("cancelled", BatchCancelledError("cancelled"), ClipState.CANCELLED)
    rendering.start("running", StageName.ENCODE)


def status(rendering: Rendering) -> Any:
    app = typer.Typer()
    app.command()(status_command)
    said = CliRunner().invoke(app, [rendering.plan.batch_id, "--json"], catch_exceptions=False)
    return json.loads(said.stdout)


def report(rendering: Rendering) -> Any:
    catalog, batch_id = rendering.site.catalog, rendering.plan.batch_id
    cost = BatchCost.from_seconds(catalog.runs.accelerator_seconds(batch_id), PRICE)
    made = build_report(rendering.store, batch_id, cost=cost, made=catalog.runs.made(batch_id))
    content = rendering.store.get_document(save_report(made, rendering.store))
    assert content is not None
    return json.loads(content)


def page(rendering: Rendering) -> Any:
    return client().get(f"/api/batches/{rendering.plan.batch_id}").json()


def metrics() -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(client().get("/metrics").text)
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def test_all_four_count_the_same_clips(rendering: Rendering) -> None:
    clips = status(rendering)["clips"]
    assert clips == {"waiting": 0, "running": 1, "done": 5, "failed": 1, "skipped": 1, "cancelled": 1}
    assert page(rendering)["clips"] == {**clips, "total": 9, "reused": 2}
    measured = metrics()
    assert {state: measured["magi2_clips", state] for state in clips} == clips
    told = report(rendering)
    done = [*told["done"], *told["flagged"]]
    assert sum(clip["reused"] for clip in done) == page(rendering)["clips"]["reused"]
    # A report is made at the end: what runs then has failed, and rows that were refused have too.
    failed = len(told["failed"]) - clips["running"] - page(rendering)["refused_rows"]
    assert (len(done), failed) == (clips["done"], clips["failed"])
    assert (len(told["over_budget"]), len(told["cancelled"])) == (clips["skipped"], clips["cancelled"])


def test_all_four_count_the_same_at_each_stage(rendering: Rendering) -> None:
    stages, told, measured = status(rendering)["stages"], report(rendering)["stages"], metrics()
    bars = {bar["stage"]: bar for bar in page(rendering)["stages"]}
    assert list(bars) == list(TINY.stages) and stages.keys() == bars.keys() == told.keys()
    # Two of nine clips are reused, of which one has no refiner; the one that was resumed is not, though it found much.
    assert [stages[name]["made"] for name in bars] == [7, 5, 3, 3, 3, 3]
    assert [stages[name]["reused"] for name in bars] == [2, 2, 2, 1, 2, 2]
    for name, stage in stages.items():
        bar, reported = bars[name], told[name]
        done = stage["made"] + stage["reused"]
        assert (bar["done"], reported["computed"] + reported["reused"]) == (done, done), name
        assert (bar["reused"], reported["reused"]) == (stage["reused"], stage["reused"]), name
        assert measured["magi2_stage_runs_total", name, "made"] == stage["made"], name
        assert (bar["failed"], reported["failed"]) == (stage["failed"], stage["failed"] + stage["running"]), name
        assert measured["magi2_stage_runs_total", name, "failed"] == stage["failed"], name
        seconds = {each["accelerator_seconds"] for each in (stage, bar, reported)}
        assert seconds == {measured["magi2_accelerator_seconds_total", name]}, name


def test_all_four_tell_the_same_cost(rendering: Rendering) -> None:
    views = status(rendering), report(rendering), page(rendering)
    seconds = sum(value for name, value in metrics().items() if name[0] == "magi2_accelerator_seconds_total")
    assert {view["accelerator_seconds"] for view in views} == {seconds}
    assert {view["cost"] for view in views} == {PRICE.cost(seconds)}
