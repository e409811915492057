"""Eight processes report at once, and nothing is lost, doubled or refused."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from typing import Any

import pytest
from sqlalchemy import URL, Engine, event

from magi2.artifacts import LocalStore, Manifest
from magi2.catalog import BatchState, Catalog, ClipQuery, PlannedClip, Run, RunState, open_catalog
from magi2.catalog.recount import miscounted
from magi2.catalog.statements import CHUNK
from magi2.types import StageName
from tests.batch_counts import counts_of
from tests.catalog.catalog_samples import PROFILES, done, enter, failed, make_batch, make_clip, publish

pytestmark = pytest.mark.slow

WRITERS = 8
CLIPS_EACH = 10


def in_processes(work: Callable[[int, Barrier], None]) -> list[int | None]:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(WRITERS)
    processes = [context.Process(target=work, args=(number, barrier)) for number in range(WRITERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    return [process.exitcode for process in processes]


def test_shards_report_at_once(url: URL, catalog: Catalog, store: LocalStore) -> None:
    manifest = publish(store)
    clip_ids = enter(catalog, [make_clip(number) for number in range(WRITERS * CLIPS_EACH)])

    def report(shard: int, barrier: Barrier) -> None:
        mine = clip_ids[shard::WRITERS]
        barrier.wait(30)
        own = open_catalog(url)
        own.artifacts.index([manifest])  # everybody's row
        for clip_id in mine:
            own.runs.start("night", StageName.PREVIEW, [clip_id], attempt=1, shard=shard)
            made = {"state": RunState.MADE, "seconds": 1.0, "accelerator_seconds": 8.0}
            own.runs.finish("night", [Run(clip_id=clip_id, stage=StageName.PREVIEW, **made)])
        own.runs.finish("night", [done(clip_id, manifest) for clip_id in mine])

    assert in_processes(report) == [0] * WRITERS
    counts = counts_of(catalog, "night")
    assert counts.clips.done == WRITERS * CLIPS_EACH
    assert counts.stages[StageName.PREVIEW].made == WRITERS * CLIPS_EACH
    assert counts.accelerator_seconds == 8.0 * WRITERS * CLIPS_EACH
    assert list(miscounted(catalog.database)) == []


def test_one_batch_is_entered_by_all_at_once(url: URL, catalog: Catalog) -> None:
    clips = [make_clip(number) for number in range(200)]

    def create(number: int, barrier: Barrier) -> None:
        ordered = clips[number:] + clips[:number]
        barrier.wait(30)
        own = open_catalog(url)
        own.batches.create(make_batch(clips_total=len(clips)), PROFILES)
        own.clips.add("night", [PlannedClip(clip, 0) for clip in ordered])

    assert in_processes(create) == [0] * WRITERS
    assert catalog.clips.search().total == len(clips)


def test_one_run_reported_by_all_at_once_is_one_row(url: URL, catalog: Catalog) -> None:
    (clip_id,) = enter(catalog, [make_clip()])

    def report(number: int, barrier: Barrier) -> None:
        barrier.wait(30)
        own = open_catalog(url)
        for _ in range(10):
            own.runs.start("night", StageName.DECODE, [clip_id], attempt=1)
            own.runs.finish("night", [failed(clip_id, StageName.DECODE)])

    assert in_processes(report) == [0] * WRITERS
    assert [run.state for run in catalog.runs.of_clip("night", clip_id)] == [RunState.FAILED]


def test_threads_share_one_catalog(catalog: Catalog, store: LocalStore) -> None:
    clip_ids = enter(catalog, [make_clip(number) for number in range(WRITERS * 5)])
    barrier = threading.Barrier(WRITERS)

    def report(number: int) -> None:
        barrier.wait(30)
        for clip_id in clip_ids[number::WRITERS]:
            catalog.runs.finish("night", [failed(clip_id)])
            counts_of(catalog, "night")

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(report, range(WRITERS)))
    assert counts_of(catalog, "night").clips.failed == WRITERS * 5


def test_only_one_of_two_contradicting_moves_wins(catalog: Catalog) -> None:
    for number in range(10):
        catalog.batches.create(make_batch(f"b{number}"), PROFILES)

    def move(item: tuple[int, BatchState]) -> bool:
        try:
            catalog.batches.mark(f"b{item[0]}", item[1])
        except Exception as error:
            assert "cannot become" in str(error)
            return False
        return True

    moves = [(number, state) for number in range(10) for state in (BatchState.FAILED, BatchState.CANCELLED)]
    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(move, moves)) == 10


@contextmanager
def counted() -> Iterator[list[str]]:
    """The SQL statements that reach any database."""
    statements: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def test_a_larger_batch_takes_more_statements_to_enter_and_none_more_to_read(catalog: Catalog) -> None:
    """Few for each chunk when it is entered, and the same queries whatever its size."""
    written, read = [], []
    for size in (CHUNK, 4 * CHUNK):
        clips = (PlannedClip(make_clip(number), number // 400) for number in range(size))
        with counted() as statements:
            catalog.batches.create(make_batch(str(size), clips_total=size), PROFILES)
            catalog.clips.add(str(size), clips)
        written.append(len(statements))
        with counted() as statements:
            assert counts_of(catalog, str(size)).stages[StageName.MUX].left == size
            assert catalog.clips.search(ClipQuery(batch_id=str(size)), offset=size - 10).total == size
        read.append(len(statements))
    assert written[0] < written[1] <= 4 * written[0] and written[0] < 40
    assert read[0] == read[1]


def test_manifests_are_indexed_by_all_at_once(url: URL, catalog: Catalog, store: LocalStore) -> None:
    manifests: list[Manifest] = [publish(store, seed=seed) for seed in range(30)]

    def index(number: int, barrier: Barrier) -> None:
        barrier.wait(30)
        own = open_catalog(url)
        own.artifacts.index(manifests[number:] + manifests[:number])
        own.artifacts.index(reversed(manifests))

    assert in_processes(index) == [0] * WRITERS
    assert catalog.artifacts.totals()["mux"][0] == 30
