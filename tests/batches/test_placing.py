"""Where rows have their clips brought, and what becomes of names that collide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from magi2.batches.batch_file import Batch, Row, make_batch
from magi2.batches.placing import Placing
from magi2.config.load import load_profile
from magi2.delivery.names import OUT
from magi2.errors import InputError
from tests.render_helpers import CONFIGS

PROFILE = load_profile("tiny", CONFIGS)
KITE, BOAT = {"prompt": "a kite", "seed": 1}, {"prompt": "a boat", "seed": 1}


def known(name: str) -> str:
    if name not in ("studio", OUT):
        raise InputError(f"delivery target {name!r} is not configured")
    return name


def batch_of(*rows: dict[str, Any], **placing: Any) -> Batch:
    numbered = [Row(number, values) for number, values in enumerate(rows, start=1)]
    where = Placing("night", require=known, **placing)
    return make_batch(numbered, lambda name: PROFILE, folder=Path(), placing=where)


def names_of(batch: Batch) -> list[list[str]]:
    return [[each.name for each in clip.deliveries] for clip in batch.clips]


def test_without_a_target_a_clip_goes_nowhere() -> None:
    assert names_of(batch_of(KITE)) == [[]]


def test_rows_of_one_clip_are_each_served_and_equal_places_once() -> None:
    rows = [{**KITE, "name": name} for name in ("a", "b", "A", "a")]
    (clip,) = batch_of(*rows, target="studio").clips
    assert clip.names == ("a", "b", "A", "a")
    assert [each.name for each in clip.deliveries] == ["night/a_1_tiny.mp4", "night/b_1_tiny.mp4"]


def test_clips_that_would_get_one_name_all_get_their_id_in_any_order() -> None:
    rows = [{**KITE, "name": "Shot"}, {**BOAT, "name": "shot"}]
    forth, back = batch_of(*rows, target="studio"), batch_of(*rows[::-1], target="studio")
    assert sorted(map(tuple, names_of(forth))) == sorted(map(tuple, names_of(back)))
    for clip in forth.clips:
        assert clip.deliveries[0].name == f"night/{clip.names[0]}_1_tiny_{clip.short_id}.mp4"


def test_a_folder_of_a_command_has_names_without_the_batch() -> None:
    assert names_of(batch_of(KITE, otherwise=OUT)) == [["row_1_1_tiny.mp4"]]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"delivery_target": "studios"}, "is not configured"),
        ({"delivery_target": 3}, "delivery_target is a int, not text"),
        ({"delivery_target": "studio", "delivery_name": "a.mov"}, "must end in .mp4"),
        ({"delivery_name": "a.mp4"}, "there is no target"),
    ],
)
def test_a_row_that_names_no_place_is_a_bad_row(row: dict[str, Any], reason: str) -> None:
    (bad,) = batch_of({**KITE, **row}).bad_rows
    assert reason in str(bad)


def test_where_a_clip_goes_is_no_part_of_what_it_is() -> None:
    (nowhere,), (somewhere,) = batch_of(KITE).clips, batch_of(KITE, target="studio").clips
    assert nowhere == somewhere and nowhere.clip_id == somewhere.clip_id
