"""Where shards are, and what loading weights took them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from magi2.catalog import Catalog, PlannedClip, StateError
from magi2.catalog.shards import ShardPosition
from magi2.types import StageName
from tests.catalog.catalog_samples import CREATED, PLAIN, enter, failed, make_clip

AT = ShardPosition(
    shard=0,
    stage=StageName.PREVIEW,
    attempt=1,
    clip_id=make_clip(1).clip_id,
    step=20,
    steps=100,
    steps_per_second=0.5,
    at=CREATED,
)


def test_a_shard_has_one_position_the_last(catalog: Catalog) -> None:
    clip_ids = enter(catalog, [make_clip(1), make_clip(2)])
    catalog.runs.start("night", StageName.PREVIEW, clip_ids, attempt=1, shard=0)
    catalog.shards.at_step("night", AT)
    later = replace(AT, clip_id=clip_ids[1], step=3, steps_per_second=None, at=CREATED + timedelta(minutes=3))
    assert catalog.shards.positions("night") == [AT]
    catalog.shards.at_step("night", later)
    assert catalog.shards.positions("night") == [later]
    assert (AT.seconds_left, later.seconds_left) == (160.0, None)


def test_a_clip_that_has_ended_or_is_in_another_attempt_is_no_position(catalog: Catalog) -> None:
    clip_ids = enter(catalog, [make_clip(1)])
    catalog.shards.at_step("night", AT)
    assert catalog.shards.positions("night") == []
    catalog.runs.start("night", StageName.PREVIEW, clip_ids, attempt=2, shard=0)
    assert catalog.shards.positions("night") == []
    catalog.shards.at_step("night", replace(AT, attempt=2))
    assert len(catalog.shards.positions("night")) == 1
    catalog.runs.finish("night", [failed(clip_ids[0], attempt=2)])
    assert catalog.shards.positions("night") == []


def test_shards_have_the_profile_of_their_clips(catalog: Catalog) -> None:
    plain = make_clip(3, profile_name="540p", profile_digest=PLAIN)
    enter(catalog, [make_clip(1), plain])
    catalog.clips.add("night", [PlannedClip(plain, 1)])
    assert catalog.shards.profiles("night") == {0: "1080p", 1: "540p"}


def test_positions_and_loads_need_a_batch(catalog: Catalog) -> None:
    with pytest.raises(StateError):
        catalog.shards.at_step("nowhere", AT)
    with pytest.raises(StateError):
        catalog.shards.loaded("nowhere", 0, StageName.PREVIEW, attempt=1, seconds=2.0)
