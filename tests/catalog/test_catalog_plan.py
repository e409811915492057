"""What the planner and the stages write is what the catalog reads."""

from __future__ import annotations

from pathlib import Path

from magi2.artifacts import LocalStore, sha256_file
from magi2.batches.batch_file import BadRow
from magi2.batches.plan import BatchOptions, BatchPlan, Shard, save_plan
from magi2.catalog import BatchState, Catalog, ClipState
from magi2.catalog.documents import read_batch
from magi2.catalog.rebuild import rebuild
from magi2.catalog.verify import verify
from magi2.config.load import load_profile
from magi2.config.settings import Settings
from magi2.types import Clip, FigureImage
from tests.catalog.catalog_samples import publish


def test_planned_batch_is_entered_as_it_was_planned(catalog: Catalog, store: LocalStore, tmp_path: Path) -> None:
    profile = load_profile("tiny", Settings().configs)
    picture = tmp_path / "a.png"
    picture.write_bytes(b"picture")
    figures = (FigureImage(1, picture, sha256_file(picture)),)
    one, two = (
        Clip("夜の海 🌊", seed, profile.name, profile.digest(), figures, ("row 1",), ("demo",), 3)
        for seed in (1, 2**53 - 1)
    )
    manifest = publish(store)
    catalog.artifacts.index([manifest])
    plan = BatchPlan(
        batch_id="0123456789abcdef",
        name="Night run",
        source="inbox/night.jsonl",
        options=BatchOptions(failure_limit=2, on_bad_rows="skip"),
        shards=(Shard(0, profile, (one,)),),
        cached=(two,),
        refused=(BadRow(3, "the prompt is empty"),),
        missing={},
        profiles={profile.digest(): profile},
        finished={two.clip_id: manifest.key},
        origin={"dag_id": "magi2_render_batch", "run_id": "manual__1"},
    )
    save_plan(plan, store)
    stored = read_batch(store, plan.batch_id)
    assert {planned.clip for planned in stored.clips.values()} == {one, two}
    assert stored.clips[one.clip_id].clip.tags == ("demo",)
    assert (stored.batch.failure_limit, stored.batch.on_bad_rows, stored.batch.clips_total) == (2, "skip", 2)
    assert rebuild(store, catalog).problems == ()
    finished = catalog.clips.get(plan.batch_id, two.clip_id)
    assert finished is not None
    assert (finished.state, finished.artifact_key) == (ClipState.DONE, manifest.key)
    batch = catalog.batches.get(plan.batch_id)
    assert batch is not None
    assert (batch.state, batch.dag_id) == (BatchState.WAITING, "magi2_render_batch")
    assert catalog.batches.refused_rows(plan.batch_id) == {3: "the prompt is empty"}
    assert list(verify(store, catalog, digests=True)) == []
