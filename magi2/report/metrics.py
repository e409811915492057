"""What a deployment does in numbers that Prometheus reads, counted in the catalog whenever it asks.

Labels take few values, all known beforehand, and every series is there from the start, with 0. Counters may fall when
`magi2 catalog rebuild` takes a batch out, which Prometheus takes for a restart.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from magi2.artifacts.local import LocalStore
from magi2.artifacts.store import ArtifactStore
from magi2.catalog import BatchState, Catalog, ClipState, RunState
from magi2.catalog.quality import FlaggedTotals, Quality
from magi2.catalog.totals import Totals, read_totals
from magi2.config.price import Price
from magi2.errors import Magi2Error
from magi2.quality.defects import DEFECTS
from magi2.quality.thresholds import USUAL, Thresholds
from magi2.types import StageName

RECENT = timedelta(hours=24)
"""What the ratios look back at."""
ENDED = (RunState.MADE, RunState.REUSED, RunState.FAILED, RunState.CANCELLED)
OTHER = "other"


def exposition(
    catalog: Catalog, store: ArtifactStore, price: Price | None, *, at: datetime, thresholds: Thresholds = USUAL
) -> bytes:
    """All metrics as text of Prometheus' format 0.0.4. Raises InfrastructureError when the catalog does not answer."""
    totals = read_totals(catalog.database, recent_since=at - RECENT)
    flagged = Quality(catalog.database, thresholds).totals(at - RECENT)
    registry = CollectorRegistry()
    registry.register(
        _Collector([*_of_catalog(totals, at), *_of_quality(flagged), *_of_store(store), *_of_price(price)])
    )
    return generate_latest(registry)


class _Collector(Collector):
    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _of_catalog(totals: Totals, at: datetime) -> Iterator[Metric]:
    yield _gauges(
        "magi2_batches", "Batches by state.", "state", {each: totals.batches.get(each) for each in BatchState}
    )
    yield _gauges("magi2_clips", "Clips of all batches by state.", "state", {s: totals.clips[s] for s in ClipState})
    yield from _runs(totals)
    yield _errors("magi2_failures", "Failed attempts of clips at stages, by class of error.", totals.failures)
    yield _errors("magi2_retries", "Those of them that were tried again.", totals.retries)
    waiting = (at - totals.waiting_since).total_seconds() if totals.waiting_since else 0.0
    yield _gauge("magi2_queue_age_seconds", "How long the clip that waits longest has waited.", max(waiting, 0.0))
    progress = totals.progress_at.timestamp() if totals.progress_at else 0.0
    yield _gauge("magi2_last_progress_timestamp_seconds", "When a clip last came to the end of a stage.", progress)
    yield from _ratios(totals)


def _runs(totals: Totals) -> Iterator[Metric]:
    runs = CounterMetricFamily("magi2_stage_runs", "Clips that ended a stage, by outcome.", labels=("stage", "state"))
    seconds = SummaryMetricFamily(
        "magi2_stage_seconds", "Seconds that clips took in a stage, if made.", labels=("stage",)
    )
    used = CounterMetricFamily("magi2_accelerator_seconds", "Seconds of all accelerators.", labels=("stage",))
    loads = CounterMetricFamily("magi2_weight_load_seconds", "Seconds of loading weights.", labels=("stage",))
    for stage in StageName:
        for state in ENDED:
            runs.add_metric([stage, state], totals.runs.get((stage, state), 0))
        made = stage, RunState.MADE
        seconds.add_metric([stage], count_value=totals.runs.get(made, 0), sum_value=totals.seconds.get(made, 0.0))
        used.add_metric([stage], totals.accelerator_seconds.get(stage, 0.0))
        loads.add_metric([stage], totals.loads.get(stage, 0.0))
    yield from (runs, seconds, used, loads)


def _ratios(totals: Totals) -> Iterator[Metric]:
    made, reused = (totals.recent_runs.get(state, 0) for state in (RunState.MADE, RunState.REUSED))
    hits = "Stage results of 24 hours that were in the store already, as a share; NaN without any."
    yield _gauge("magi2_cache_hit_ratio", hits, reused / (reused + made) if reused + made else math.nan)
    share = "Loading weights as a share of the seconds that clips took in 24 hours; NaN without any."
    working = totals.recent_seconds
    yield _gauge("magi2_weight_load_ratio", share, totals.recent_loads / working if working else math.nan)


def _of_quality(totals: FlaggedTotals) -> Iterator[Metric]:
    counts = {kind: totals.defects.get(kind, 0) for kind in DEFECTS}
    yield _gauges("magi2_defective_clips", "Finished clips that have a defect, by kind.", "defect", counts)
    yield _gauge("magi2_unmeasured_clips", "Finished clips in which no defects were looked for.", totals.unmeasured)
    share = "Clips with a defect, as a share of those finished in 24 hours; NaN without any."
    yield _gauge("magi2_defective_ratio", share, totals.recent_flagged / totals.recent if totals.recent else math.nan)


def _of_store(store: ArtifactStore) -> Iterator[Metric]:
    """The disk of a store that is a folder; a bucket has none to run full."""
    if isinstance(store, LocalStore):
        usage = shutil.disk_usage(_existing(store.root))
        yield _gauge("magi2_store_free_bytes", "Bytes free on the disk of the artifact store.", usage.free)
        yield _gauge("magi2_store_size_bytes", "Bytes of the disk of the artifact store.", usage.total)


def _of_price(price: Price | None) -> Iterator[Metric]:
    if price is not None:
        values = {price.currency: price.per_accelerator_hour}
        yield _gauges("magi2_price_per_accelerator_hour", "Price of an hour of one accelerator.", "currency", values)


def _errors(name: str, text: str, counts: Mapping[str, int]) -> Metric:
    """A counter by error code; codes that this version does not know are counted together."""
    known = dict.fromkeys(sorted(_codes(Magi2Error)), 0) | {OTHER: 0}
    for code, count in counts.items():
        known[code if code in known else OTHER] += count
    family = CounterMetricFamily(name, text, labels=("error",))
    for code, count in known.items():
        family.add_metric([code], count)
    return family


def _codes(error: type[Magi2Error]) -> set[str]:
    return {error.code}.union(*(_codes(each) for each in error.__subclasses__()))


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _gauges(name: str, text: str, label: str, values: Mapping[str, float | None]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=(label,))
    for key, value in values.items():
        family.add_metric([key], value or 0)
    return family


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there: a store is made when it is first written to."""
    return next(each for each in (path, *path.parents) if each.is_dir())
