"""Pages of clips: every order, every filter, no clip twice and none left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from magi2.artifacts import LocalStore
from magi2.catalog import Catalog, ClipQuery, ClipState, Run, RunState
from magi2.catalog.pages import PROMPT_CHARACTERS, ClipWork, Neighbours, Pages, PageSort
from magi2.catalog.records import now
from magi2.catalog.shards import ShardPosition
from magi2.types import FigureImage, StageName
from tests.catalog.catalog_samples import PLAIN, done, enter, failed, make_clip, publish

NIGHT = ClipQuery(batch_id="night")


@pytest.fixture
def pages(catalog: Catalog) -> Pages:
    return Pages(catalog.database)


def prompts(pages: Pages, query: ClipQuery = NIGHT, **order: object) -> list[str]:
    return [clip.prompt for clip in pages.clips(query, **order).rows]  # type: ignore[arg-type]


def test_pages_together_have_every_clip_once(catalog: Catalog, pages: Pages) -> None:
    clip_ids = enter(catalog, [make_clip(number, names=("the same",)) for number in range(25)])
    for sort in PageSort:
        found = [pages.clips(NIGHT, sort=sort, offset=offset, limit=10) for offset in (0, 10, 20)]
        assert [page.total for page in found] == [25, 25, 25]
        assert sorted(clip.clip_id for page in found for clip in page.rows) == sorted(clip_ids), sort


def test_clips_come_in_the_order_that_was_asked_for(catalog: Catalog, pages: Pages) -> None:
    first, second, third = enter(catalog, [make_clip(n, names=(name,)) for n, name in enumerate("bca")])
    runs = [
        Run(clip_id=first, stage=StageName.PREVIEW, state=RunState.MADE, seconds=3.0, accelerator_seconds=8.0),
        Run(clip_id=second, stage=StageName.PREVIEW, state=RunState.MADE, seconds=1.0, accelerator_seconds=9.0),
        Run(clip_id=second, stage=StageName.DECODE, state=RunState.MADE, seconds=1.0, accelerator_seconds=1.0),
    ]
    catalog.runs.finish("night", runs)
    catalog.runs.finish("night", [failed(third, seconds=0.5, accelerator_seconds=4.0)])
    assert prompts(pages, sort=PageSort.NAME, descending=False) == ["prompt 2", "prompt 0", "prompt 1"]
    assert prompts(pages, sort=PageSort.NAME) == ["prompt 1", "prompt 0", "prompt 2"]
    assert prompts(pages, sort=PageSort.SECONDS) == ["prompt 0", "prompt 1", "prompt 2"]
    assert prompts(pages, sort=PageSort.COST) == ["prompt 1", "prompt 0", "prompt 2"]
    assert prompts(pages, sort=PageSort.STATE, descending=False)[0] == "prompt 2"
    assert prompts(pages, sort=PageSort.UPDATED)[0] == "prompt 2"


def test_a_clip_without_a_name_stands_first_by_name(catalog: Catalog, pages: Pages) -> None:
    enter(catalog, [make_clip(0, names=("a",)), make_clip(1, names=())])
    assert prompts(pages, sort=PageSort.NAME, descending=False) == ["prompt 1", "prompt 0"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (ClipQuery(state=ClipState.FAILED), [2]),
        (ClipQuery(failed_stage="preview", reason="video has NaN"), [2]),
        (ClipQuery(failed_stage="decode"), []),
        (ClipQuery(profile="540p"), [1]),
        (ClipQuery(tag='say "hi"'), [0]),
        (ClipQuery(tag="say"), []),
        (ClipQuery(text="PROMPT"), [0, 1, 2]),
        (ClipQuery(text="100%"), []),
        (ClipQuery(text="row 1"), [1]),
        (ClipQuery(shard=0), [0, 1, 2]),
        (ClipQuery(shard=1), []),
        (ClipQuery(batch_id="other"), []),
    ],
)
def test_filters_keep_what_meets_them(catalog: Catalog, pages: Pages, query: ClipQuery, expected: list[int]) -> None:
    clips = [
        make_clip(0, tags=('say "hi"', "b")),
        make_clip(1, profile_name="540p", profile_digest=PLAIN),
        make_clip(2),
    ]
    ids = enter(catalog, clips)
    catalog.runs.finish("night", [failed(ids[2])])
    page = pages.clips(replace(query, batch_id=query.batch_id or "night"))
    assert sorted(clip.seed for clip in page.rows) == expected
    assert page.total == len(expected)


def test_a_listed_clip_has_what_its_card_shows(catalog: Catalog, pages: Pages, tmp_path: Path) -> None:
    manifest = publish(LocalStore(tmp_path / "store"), flags=("black",))
    (clip_id,) = enter(catalog, [make_clip(prompt="x" * 10_000, tags=("a", "b"))])
    catalog.artifacts.index([manifest])
    shared = {"clip_id": clip_id, "stage": StageName.ENHANCE}
    catalog.runs.finish("night", [Run(**shared, state=RunState.MADE, seconds=2.0, flags=("fallback",))])  # type: ignore[arg-type]
    catalog.runs.finish("night", [done(clip_id, manifest, seconds=1.5, accelerator_seconds=12.0)])
    (clip,) = pages.clips(NIGHT).rows
    assert clip == pages.these([("night", clip_id)])[0]
    assert clip.prompt == "x" * PROMPT_CHARACTERS + "\u2026"
    assert (clip.tags, clip.flags) == (("a", "b"), ("black", "fallback"))
    assert (clip.seconds, clip.accelerator_seconds, clip.artifact_key) == (3.5, 12.0, manifest.key)


def test_a_clip_is_compared_with_the_same_prompt_and_images(catalog: Catalog, pages: Pages) -> None:
    cat, dog = (FigureImage(1, Path("a.png"), digit * 64) for digit in "cd")
    mine = make_clip(0, prompt="one", figures=(cat,))
    moved = replace(cat, path=Path("/elsewhere/a.png"))
    alike = [replace(mine, seed=5, figures=(moved,)), replace(mine, profile_name="540p", profile_digest=PLAIN)]
    different = [replace(mine, figures=(dog,)), make_clip(1, prompt="two", figures=(cat,))]
    enter(catalog, [mine, *alike, *different])
    enter(catalog, [alike[0], mine], batch_id="later")
    found = pages.others("night", mine.clip_id)
    assert {clip.clip_id for clip in found} == {clip.clip_id for clip in alike}
    assert [clip.batch_id for clip in found] == ["night", "night"]
    assert pages.others("night", "f" * 64) == []


def test_facets_count_every_value(catalog: Catalog, pages: Pages) -> None:
    tags = [("a", "b"), ("a", "b"), ("夜", "a"), ()]
    ids = enter(catalog, [make_clip(n, tags=each) for n, each in enumerate(tags)])
    catalog.runs.finish("night", [failed(ids[0])])
    facets = pages.facets("night")
    assert (facets.states, facets.profiles) == ({"failed": 1, "waiting": 3}, {"1080p": 4})
    assert facets.tags == {"a": 3, "b": 2, "夜": 1}


def test_failures_are_grouped_by_stage_and_reason(catalog: Catalog, pages: Pages) -> None:
    ids = enter(catalog, [make_clip(n) for n in range(9)])
    runs = [failed(each, attempt=attempt) for each in ids[:6] for attempt in (1, 2)]
    runs += [failed(ids[6], StageName.DECODE), failed(ids[7], error="lost", error_code="infrastructure")]
    catalog.runs.finish("night", runs)
    page = pages.failures("night")
    groups = {(group.stage, group.reason): group for group in page.rows}
    assert page.total == len(groups) == 3
    most = page.rows[0]
    assert (most.stage, most.reason, most.error_code, most.count) == ("preview", "video has NaN", "contract", 6)
    assert len(most.examples) == 4 and {clip.clip_id for clip in most.examples} < set(ids[:6])
    assert groups["preview", "lost"].error_code == "infrastructure"
    assert groups["decode", "video has NaN"].count == 1


def test_neighbours_are_those_of_the_pages_in_every_order(catalog: Catalog, pages: Pages) -> None:
    enter(catalog, [make_clip(number, names=("the same",)) for number in range(7)])
    for sort in PageSort:
        for descending in (False, True):
            order = {"sort": sort, "descending": descending}
            ids = [clip.clip_id for clip in pages.clips(NIGHT, **order).rows]  # type: ignore[arg-type]
            for place, clip_id in enumerate(ids, start=1):
                before, after = (ids[at] if 0 <= at < 7 else None for at in (place - 2, place))
                found = pages.neighbours(NIGHT, clip_id, **order)  # type: ignore[arg-type]
                assert found == Neighbours(7, place, before, after)


def test_clip_that_a_list_has_not_has_no_neighbours_there(catalog: Catalog, pages: Pages) -> None:
    first, *_ = enter(catalog, [make_clip(1), make_clip(2, tags=("fox",)), make_clip(3, tags=("fox",))])
    assert pages.neighbours(ClipQuery(batch_id="night", tag="fox"), first) == Neighbours(2)


def test_clips_of_one_name_say_so_and_others_do_not(catalog: Catalog, pages: Pages) -> None:
    names = [("take",), ("take",), ("other", "take"), ()]
    enter(catalog, [make_clip(number, names=each) for number, each in enumerate(names)])
    shared = {clip.seed: clip.shares_name for clip in pages.clips(NIGHT, limit=1).rows}
    shared |= {clip.seed: clip.shares_name for clip in pages.clips(NIGHT).rows}
    found = {clip.names: clip.shares_name for clip in pages.clips(NIGHT).rows}
    assert found == {("take",): True, ("other", "take"): False, (): False} and sum(shared.values()) == 2


def test_running_clips_tell_their_stage_and_the_one_at_work_its_step(catalog: Catalog, pages: Pages) -> None:
    clip_ids = enter(catalog, [make_clip(number) for number in range(3)])
    assert {clip.work for clip in pages.clips(NIGHT).rows} == {None}
    catalog.runs.start("night", StageName.PREVIEW, clip_ids[:2], attempt=2, shard=0, host="node1")
    where = {"shard": 0, "stage": StageName.PREVIEW, "clip_id": clip_ids[0], "steps_per_second": None, "at": now()}
    for attempt in (1, 2):
        catalog.shards.at_step("night", ShardPosition(**where, attempt=attempt, step=12, steps=20))  # type: ignore[arg-type]
        work = {clip.clip_id: clip.work for clip in pages.clips(NIGHT).rows}
        at_step = (12, 20) if attempt == 2 else (None, None)  # an earlier attempt's step says nothing of this one
        assert work == {
            clip_ids[0]: ClipWork(StageName.PREVIEW, *at_step),
            clip_ids[1]: ClipWork(StageName.PREVIEW),
            clip_ids[2]: None,
        }
