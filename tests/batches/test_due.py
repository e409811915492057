"""What a stage of a shard has to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from magi2.artifacts.local import LocalStore
from magi2.batches.due import due_clips
from magi2.batches.plan import Shard
from magi2.batches.results import write_results
from magi2.errors import ImageError
from magi2.recipes.result import StageResult
from magi2.types import StageName
from tests.render_helpers import make_clip, small_profile

PROFILE = small_profile()
LOST, GOOD = CLIPS = tuple(make_clip(PROFILE, seed=seed) for seed in range(2))
SHARD = Shard(0, PROFILE, CLIPS)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """In which one clip was lost in encode."""
    store = LocalStore(tmp_path / "store")
    made = StageResult(StageName.ENCODE, GOOD, "made", 1.0, key="k")
    lost = replace(made, clip=LOST, state="failed", key=None, error=ImageError("broken"))
    write_results(store, "night", 0, StageName.ENCODE, 1, [lost, made])
    return store


@pytest.mark.parametrize("stage", [StageName.ENHANCE, StageName.ENCODE])
def test_a_clip_is_due_until_after_the_stage_that_lost_it(store: LocalStore, stage: StageName) -> None:
    assert due_clips(store, "night", SHARD, stage) == CLIPS


@pytest.mark.parametrize("stage", [StageName.PREVIEW, StageName.DECODE, StageName.MUX])
def test_clips_lost_in_an_earlier_stage_are_not_due(store: LocalStore, stage: StageName) -> None:
    assert due_clips(store, "night", SHARD, stage) == (GOOD,)


def test_nothing_is_due_in_a_stage_that_the_profile_does_not_have(store: LocalStore) -> None:
    assert due_clips(store, "night", SHARD, StageName.REFINE) == ()
