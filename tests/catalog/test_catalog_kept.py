"""The numbers that are kept are those of the rows, whatever wrote these, and wrong ones are found and mended."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from alembic import command
from sqlalchemy import URL, text

from magi2.artifacts import LocalStore
from magi2.catalog import BatchState, Catalog, ClipState, PlannedClip, Run, RunState, open_catalog
from magi2.catalog.compare import ProblemKind
from magi2.catalog.engine import Database
from magi2.catalog.migrate import alembic_config, migrate
from magi2.catalog.overview import Overview
from magi2.catalog.quality import Quality
from magi2.catalog.rebuild import rebuild
from magi2.catalog.recount import miscounted, recount
from magi2.catalog.totals import read_totals
from magi2.catalog.verify import verify
from magi2.errors import InfrastructureError
from magi2.quality.thresholds import USUAL
from magi2.types import Delivery, StageName
from tests.catalog.catalog_samples import CREATED, PROFILES, done, enter, failed, make_batch, make_clip, publish

NIGHT = "night"


def made(clip_id: str, stage: StageName = StageName.PREVIEW, **changes: Any) -> Run:
    values = {"seconds": 10.0, "accelerator_seconds": 80.0, "finished_at": CREATED}
    return Run(clip_id=clip_id, stage=stage, state=RunState.MADE, **{**values, **changes})


def test_kept_numbers_are_right_after_every_kind_of_write(catalog: Catalog, store: LocalStore) -> None:
    manifest = publish(store)
    catalog.artifacts.index([manifest])
    clips = [make_clip(number) for number in range(6)]
    ids = enter(catalog, clips)
    steps: dict[str, Callable[[], object]] = {
        "found": lambda: catalog.clips.add(NIGHT, [PlannedClip(make_clip(7), None, manifest.key, is_delivered=True)]),
        "start": lambda: catalog.runs.start(NIGHT, StageName.PREVIEW, ids, attempt=1, shard=0),
        "withdraw": lambda: catalog.runs.withdraw(NIGHT, StageName.PREVIEW, ids[:1], attempt=1),
        "made": lambda: catalog.runs.finish(NIGHT, [made(clip_id) for clip_id in ids[:4]]),
        "failed": lambda: catalog.runs.finish(NIGHT, [failed(ids[4], seconds=3.0)], tried_again=True),
        "again": lambda: catalog.runs.finish(NIGHT, [made(ids[4], attempt=2)]),
        "done": lambda: catalog.runs.finish(NIGHT, [done(ids[0], manifest)]),
        "loaded": lambda: catalog.shards.loaded(NIGHT, 0, StageName.PREVIEW, attempt=1, seconds=4.0),
        "loaded otherwise": lambda: catalog.shards.loaded(NIGHT, 0, StageName.PREVIEW, attempt=1, seconds=5.0),
        "judged": lambda: Quality(catalog.database, USUAL).bring_up_to_date(),
        "marked": lambda: catalog.clips.mark(NIGHT, ids[1:2], ClipState.FAILED, failed_stage=StageName.MUX),
        "set aside": lambda: catalog.clips.set_aside(NIGHT, ids[2:3], ClipState.SKIPPED, "no money"),
        "another shard": lambda: catalog.clips.add(NIGHT, [PlannedClip(clips[3], 5)]),
        "placed": lambda: catalog.clips.place(NIGHT, ids[3], [Delivery("films", "a.mp4")]),
        "lost": lambda: catalog.runs.end_running(NIGHT, InfrastructureError("gone")),
        "cancelled": lambda: catalog.batches.mark(NIGHT, BatchState.CANCELLED),
        "forgotten": lambda: catalog.artifacts.forget([manifest.key]),
    }
    for name, step in steps.items():
        step()
        assert list(miscounted(catalog.database)) == [], name
    totals = read_totals(catalog.database, recent_since=CREATED)
    assert totals.clips[ClipState.WAITING] == 2
    assert totals.loads == {StageName.PREVIEW: 5.0}
    assert totals.retries["contract"] == 1


def test_a_statement_by_hand_is_counted_by_the_next_write(catalog: Catalog) -> None:
    ids = enter(catalog, [make_clip(number) for number in range(3)])
    by_hand = Database(catalog.database.url)
    by_hand.write(lambda connection: connection.execute(text("UPDATE batch_clips SET state = 'cancelled'")))
    catalog.runs.start(NIGHT, StageName.ENCODE, ids[:1], attempt=1)
    assert list(miscounted(catalog.database)) == []
    assert Overview(catalog.database).counts([NIGHT])[NIGHT].clips.cancelled == 2


def test_wrong_numbers_are_found_by_verify_and_mended_by_rebuild(catalog: Catalog, store: LocalStore) -> None:
    ids = enter(catalog, [make_clip(number) for number in range(2)])
    catalog.runs.finish(NIGHT, [made(clip_id) for clip_id in ids])
    wrong = {
        "UPDATE shard_clips SET clips = clips + 1": "batches/night",
        "UPDATE shard_clips SET state = 'done'": "batches/night",
        "DELETE FROM shard_runs": "batches/night",
        "UPDATE shard_runs SET seconds = seconds + 60": "batches/night",
        "UPDATE batch_clips SET seconds = 1": "batches/night",
        "UPDATE total_clips SET clips = 9": "batches",
        "DELETE FROM total_runs": "batches",
    }

    def problems() -> set[str]:
        found = verify(store, catalog, digests=False)
        return {problem.place for problem in found if problem.kind is ProblemKind.MISCOUNTED}

    for statement, place in wrong.items():
        catalog.database.write(lambda connection, each=statement: connection.execute(text(each)))
        assert place in problems(), statement
        rebuild(store, catalog, force=True)
        assert problems() == set(), statement


def test_a_catalog_of_the_version_before_is_counted_when_it_is_migrated(empty_url: URL) -> None:
    database = Database(empty_url)
    database.write(lambda connection: command.upgrade(alembic_config(connection), "0006"))
    database.write(
        lambda connection: [
            connection.execute(text(statement.replace("NOW", "'2031-02-03 04:05:06'"))) and None
            for statement in (
                "INSERT INTO profiles VALUES ('p', '{}')",
                "INSERT INTO batches (batch_id, name, source, state, created_at, clips_total, failure_limit, "
                "on_bad_rows) VALUES ('night', 'n', 's', 'running', NOW, 2, 0, 'refuse')",
                "INSERT INTO clips VALUES ('c0', 'a heron', 0, '1080p', 'p', '[]')",
                "INSERT INTO clips VALUES ('c1', 'a heron', 1, '1080p', 'p', '[]')",
                "INSERT INTO batch_clips (batch_id, clip_id, names, tags, priority, shard, state, updated_at) "
                "VALUES ('night', 'c0', '[\"row 1\", \"row 2\"]', '[]', 0, 0, 'running', NOW)",
                "INSERT INTO batch_clips (batch_id, clip_id, names, tags, priority, shard, state, updated_at) "
                "VALUES ('night', 'c1', '[]', '[]', 0, 1, 'waiting', NOW)",
                "INSERT INTO stage_runs (batch_id, clip_id, stage, attempt, state, seconds, flags) "
                "VALUES ('night', 'c0', 'preview', 1, 'made', 7.5, '[]')",
            )
        ]
    )
    migrate(empty_url)
    catalog = open_catalog(empty_url)
    counts = Overview(catalog.database).counts([NIGHT])[NIGHT]
    assert (counts.clips.running, counts.clips.waiting) == (1, 1)
    rows = catalog.database.read(
        lambda connection: connection.execute(
            text("SELECT first_name, seconds, prompt_digest FROM batch_clips JOIN clips USING (clip_id) ORDER BY 1")
        ).all()
    )
    digest = hashlib.sha256(b"a heron").hexdigest()
    assert sorted(rows, key=lambda row: row.seconds) == [("", 0.0, digest), ("row 1", 7.5, digest)]
    assert list(miscounted(catalog.database)) == []
    assert read_totals(catalog.database, recent_since=CREATED).runs == {(StageName.PREVIEW, RunState.MADE): 1}


def test_counting_anew_changes_nothing_that_is_right(catalog: Catalog) -> None:
    ids = enter(catalog, [make_clip(number) for number in range(3)])
    catalog.runs.finish(NIGHT, [made(clip_id) for clip_id in ids])
    before = read_totals(catalog.database, recent_since=CREATED), Overview(catalog.database).shards(NIGHT)
    recount(catalog.database)
    assert (read_totals(catalog.database, recent_since=CREATED), Overview(catalog.database).shards(NIGHT)) == before


def test_a_batch_of_many_shards_is_counted_at_once_as_shard_by_shard(catalog: Catalog) -> None:
    catalog.batches.create(make_batch(clips_total=20), PROFILES)
    catalog.clips.add(NIGHT, [PlannedClip(make_clip(number), number) for number in range(20)])
    assert list(miscounted(catalog.database)) == []
    assert [each.clips.waiting for each in Overview(catalog.database).shards(NIGHT).values()] == [1] * 20
