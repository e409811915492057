"""Defects in the catalog: judged when somebody asks, under today's thresholds, and found by their flags."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from magi2.artifacts import LocalStore
from magi2.catalog import Catalog, ClipQuery, PlannedClip
from magi2.catalog.pages import Pages
from magi2.catalog.quality import Quality
from magi2.quality.measures import MEASURES
from magi2.quality.thresholds import USUAL, Thresholds
from magi2.types import Expect
from tests.catalog.catalog_samples import done, enter, make_clip, publish
from tests.quality.written_measures import measures

HOUR_AGO = datetime.now(UTC) - timedelta(hours=1)
LENIENT = Thresholds(still_s=9.0)


@pytest.fixture
def clip_ids(catalog: Catalog, tmp_path: Path) -> list[str]:
    """A good clip, one that rests, one that rests and may, one of a version that did not measure, and an unfinished."""
    store = LocalStore(tmp_path / "store")
    clips = [make_clip(n, expect=Expect("rest", "any") if n == 2 else Expect()) for n in range(5)]
    clip_ids = enter(catalog, clips)
    found = (measures(), measures(still_from=4), measures(still_from=4, silent_from=2), None)
    for seed, (clip_id, each) in enumerate(zip(clip_ids, found, strict=False)):
        manifest = publish(store, seed=seed, report={MEASURES: each} if each else {})
        catalog.artifacts.index([manifest])
        catalog.runs.finish("night", [done(clip_id, manifest)])
    return clip_ids


def with_flag(catalog: Catalog, flag: str, thresholds: Thresholds = USUAL) -> set[str]:
    Quality(catalog.database, thresholds).bring_up_to_date("night")
    page = Pages(catalog.database).clips(ClipQuery(batch_id="night", flag=flag))
    assert page.total == len(page.rows)
    return {clip.clip_id for clip in page.rows}


def test_clips_are_found_by_their_defects(catalog: Catalog, clip_ids: list[str]) -> None:
    assert with_flag(catalog, "frozen") == with_flag(catalog, "any") == {clip_ids[1]}
    assert with_flag(catalog, "unmeasured") == {clip_ids[3]}
    assert with_flag(catalog, "black") == set()
    assert Pages(catalog.database).facets("night").flags == {"any": 1, "frozen": 1, "unmeasured": 1}
    listed = {clip.clip_id: clip for clip in Pages(catalog.database).clips(ClipQuery(batch_id="night")).rows}
    assert [listed[each].flags for each in clip_ids] == [(), ("frozen",), (), (), ()]
    assert [listed[each].is_measured for each in clip_ids] == [True, True, True, False, False]


def test_other_thresholds_hold_at_once_and_change_back(catalog: Catalog, clip_ids: list[str]) -> None:
    assert with_flag(catalog, "frozen") == {clip_ids[1]}
    assert with_flag(catalog, "frozen", LENIENT) == set()
    assert with_flag(catalog, "frozen") == {clip_ids[1]}


def test_another_expectation_holds_once_the_batch_is_planned_again(catalog: Catalog, clip_ids: list[str]) -> None:
    assert with_flag(catalog, "frozen") == {clip_ids[1]}
    catalog.clips.add("night", [PlannedClip(make_clip(n, expect=Expect(("any", "moving")[n - 1])), 0) for n in (1, 2)])
    assert with_flag(catalog, "frozen") == {clip_ids[2]}
    record = catalog.clips.get("night", clip_ids[1])
    assert record and record.clip.expect == Expect("any")


def test_a_clip_is_judged_with_the_places_of_its_defects(catalog: Catalog, clip_ids: list[str]) -> None:
    quality = Quality(catalog.database, USUAL)
    judged = [quality.of("night", clip_id) for clip_id in clip_ids]
    assert judged[1] and judged[1].to_json()["defects"] == [{"kind": "frozen", "spans": [[3.6, 10.0]]}]
    assert judged[2] and (judged[2].flags, judged[2].silent_s) == ((), 8.0)
    assert judged[3:] == [None, None]


def test_totals_count_what_is_finished(catalog: Catalog, clip_ids: list[str]) -> None:
    totals = Quality(catalog.database, USUAL).totals(HOUR_AGO)
    assert (totals.defects, totals.unmeasured, totals.recent, totals.recent_flagged) == ({"frozen": 1}, 1, 4, 1)
