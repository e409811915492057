"""What Prometheus reads: every series from the start, few label values, right numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from magi2.artifacts.local import LocalStore
from magi2.artifacts.store import ArtifactStore
from magi2.catalog import BatchState, Catalog, NewBatch, PlannedClip, Run, RunState, open_catalog
from magi2.config.price import Price
from magi2.report.metrics import exposition
from magi2.types import Clip, StageName

NOW = datetime.now(UTC)
PROFILE = "a" * 64
CLIPS = [Clip(f"prompt {n}", n, "1080p", PROFILE) for n in range(4)]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return open_catalog(f"sqlite:///{tmp_path}/catalog.sqlite")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "not yet written" / "store")


def families(
    catalog: Catalog, store: ArtifactStore, price: Price | None = None, at: datetime = NOW
) -> dict[str, Metric]:
    text = exposition(catalog, store, price, at=at).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(found: Iterable[Metric], name: str, **labels: str) -> float:
    (sample,) = [s for family in found for s in family.samples if s.name == name and s.labels == labels]
    return sample.value


def enter(catalog: Catalog, batch_id: str = "night") -> None:
    batch = NewBatch(batch_id=batch_id, name="n", source="s", clips_total=len(CLIPS))
    catalog.batches.create(batch, {PROFILE: {"refiner": None}})
    catalog.clips.add(batch_id, [PlannedClip(clip, 0) for clip in CLIPS])


def run(clip: Clip, state: RunState, stage: StageName = StageName.PREVIEW, **values: object) -> Run:
    given = {"seconds": 10.0, "accelerator_seconds": 80.0, "finished_at": NOW - timedelta(minutes=5), **values}
    return Run(clip_id=clip.clip_id, stage=stage, state=state, **given)  # type: ignore[arg-type]


def test_numbers_are_those_of_the_catalog(catalog: Catalog, store: LocalStore) -> None:
    enter(catalog)
    lost = run(CLIPS[2], RunState.FAILED, error_code="infrastructure", seconds=1.0, accelerator_seconds=0.0)
    catalog.runs.finish("night", [run(CLIPS[0], RunState.MADE), run(CLIPS[1], RunState.REUSED, seconds=0.1), lost])
    catalog.runs.start("night", StageName.PREVIEW, [CLIPS[2].clip_id], attempt=2)
    catalog.shards.loaded("night", 0, StageName.PREVIEW, attempt=1, seconds=1.11)
    found = families(catalog, store, Price(2.5, "EUR")).values()
    assert value(found, "magi2_clips", state="running") == 3 and value(found, "magi2_clips", state="waiting") == 1
    assert value(found, "magi2_batches", state="running") == 1
    assert value(found, "magi2_stage_runs_total", stage="preview", state="made") == 1
    assert value(found, "magi2_stage_seconds_sum", stage="preview") == 10.0
    assert value(found, "magi2_stage_seconds_count", stage="preview") == 1
    assert value(found, "magi2_accelerator_seconds_total", stage="preview") == 160.0
    assert value(found, "magi2_weight_load_seconds_total", stage="preview") == 1.11
    assert value(found, "magi2_failures_total", error="infrastructure") == 1
    assert value(found, "magi2_retries_total", error="infrastructure") == 1
    assert value(found, "magi2_cache_hit_ratio") == 0.5
    assert value(found, "magi2_weight_load_ratio") == pytest.approx(0.1)
    assert value(found, "magi2_price_per_accelerator_hour", currency="EUR") == 2.5
    assert value(found, "magi2_last_progress_timestamp_seconds") == (NOW - timedelta(minutes=5)).timestamp()


def test_every_series_is_there_before_anything_happened(catalog: Catalog, store: LocalStore) -> None:
    before = {s.name: s.labels for family in families(catalog, store).values() for s in family.samples}
    enter(catalog)
    catalog.runs.finish("night", [run(CLIPS[0], RunState.MADE), run(CLIPS[1], RunState.FAILED, error_code="image")])
    after = families(catalog, store)
    assert {s.name for family in after.values() for s in family.samples} == before.keys()
    empty = families(open_catalog(f"sqlite:///{store.root.parent}/empty.sqlite"), store).values()
    assert value(empty, "magi2_clips", state="done") == 0
    assert math.isnan(value(empty, "magi2_cache_hit_ratio"))
    assert value(empty, "magi2_queue_age_seconds") == 0


def test_the_number_of_series_does_not_grow_with_the_catalog(catalog: Catalog, store: LocalStore) -> None:
    def count() -> int:
        return sum(len(family.samples) for family in families(catalog, store).values())

    before = count()
    for number in range(3):
        enter(catalog, f"night{number}")
        odd = [run(clip, RunState.FAILED, error_code=f"never heard of {clip.seed}") for clip in CLIPS]
        catalog.runs.finish(f"night{number}", odd)
    assert count() == before
    assert value(families(catalog, store).values(), "magi2_failures_total", error="other") == 12


def test_ratios_look_back_one_day(catalog: Catalog, store: LocalStore) -> None:
    enter(catalog)
    catalog.runs.finish("night", [run(CLIPS[0], RunState.MADE), run(CLIPS[1], RunState.REUSED)])
    later = families(catalog, store, at=NOW + timedelta(days=2)).values()
    assert math.isnan(value(later, "magi2_cache_hit_ratio"))
    assert value(later, "magi2_stage_runs_total", stage="preview", state="reused") == 1


def test_the_queues_age_is_that_of_the_clip_that_waits_longest(catalog: Catalog, store: LocalStore) -> None:
    enter(catalog)
    age = value(families(catalog, store, at=datetime.now(UTC) + timedelta(hours=2)).values(), "magi2_queue_age_seconds")
    assert 7200 <= age < 7300
    catalog.batches.mark("night", BatchState.CANCELLED)
    assert value(families(catalog, store).values(), "magi2_queue_age_seconds") == 0


def test_only_a_store_in_a_folder_has_a_disk(catalog: Catalog, store: LocalStore) -> None:
    found = families(catalog, store)
    free = value(found.values(), "magi2_store_free_bytes")
    assert 0 < free <= value(found.values(), "magi2_store_size_bytes")

    class Bucket:
        url = "s3://bucket"

    assert "magi2_store_free_bytes" not in families(catalog, Bucket())  # type: ignore[arg-type]
