"""Clips: entered by plan, done only by proof, found by what people look for."""

from __future__ import annotations

from pathlib import Path

import pytest

from magi2.artifacts import LocalStore
from magi2.catalog import Catalog, ClipQuery, ClipSort, ClipState, PlannedClip, StateError
from magi2.types import Clip, FigureImage, StageName
from tests.catalog.catalog_samples import PLAIN, PROFILES, done, enter, failed, make_batch, make_clip, publish

EVERYTHING = ClipQuery()


def ids(catalog: Catalog, query: ClipQuery = EVERYTHING, **order: object) -> list[str]:
    return [record.clip.prompt for record in catalog.clips.search(query, **order).rows]  # type: ignore[arg-type]


def test_clip_comes_back_as_planned(catalog: Catalog) -> None:
    clip = make_clip(
        7,
        prompt='Ein Mädchen sagt: „夜の海 🌊"\n\u2028 %_\\',
        seed=2**53 - 1,
        figures=(FigureImage(1, Path("/in/a b.png"), "c" * 64), FigureImage(2, Path("é.jpg"), "d" * 64)),
        names=("row 7", "夜"),
        tags=("demo", "夜"),
        priority=-3,
    )
    (clip_id,) = enter(catalog, [clip])
    found = catalog.clips.get("night", clip_id)
    assert found is not None
    assert (found.clip_id, found.clip, found.shard) == (clip.clip_id, clip, 0)
    assert (found.clip.names, found.clip.tags, found.clip.priority) == (clip.names, clip.tags, -3)
    assert (found.state, found.failed_stage, found.reason, found.artifact_key) == (ClipState.WAITING, None, None, None)
    assert catalog.clips.get("other", clip_id) is None


def test_text_that_no_database_takes_is_still_entered(catalog: Catalog) -> None:
    clip = make_clip(prompt="a\0b", names=("n\0",), tags=("t\0",))
    (clip_id,) = enter(catalog, [clip])
    catalog.clips.mark("night", [clip_id], ClipState.FAILED, reason="file \udcff.png")
    found = catalog.clips.get("night", clip_id)
    assert found is not None
    assert (found.clip_id, found.clip.prompt, found.reason) == (clip.clip_id, "a\ufffdb", "file ?.png")


def test_number_that_no_database_holds_is_refused(catalog: Catalog) -> None:
    with pytest.raises(StateError):
        enter(catalog, [make_clip(priority=10**30)])


def test_clip_needs_batch_and_profile(catalog: Catalog) -> None:
    with pytest.raises(StateError):
        catalog.clips.add("night", [PlannedClip(make_clip(), 0)])
    catalog.batches.create(make_batch(), {PLAIN: PROFILES[PLAIN]})
    with pytest.raises(StateError):
        catalog.clips.add("night", [PlannedClip(make_clip(), 0)])
    catalog.clips.add("night", [PlannedClip(make_clip(profile_digest=PLAIN), 0)])


def test_clip_is_done_from_the_start_only_by_an_indexed_artifact(catalog: Catalog, store: LocalStore) -> None:
    catalog.batches.create(make_batch(), PROFILES)
    manifest = publish(store)
    planned = PlannedClip(make_clip(), artifact_key=manifest.key)
    with pytest.raises(StateError, match="never entered"):
        catalog.clips.add("night", [planned])
    assert catalog.clips.search().total == 0
    catalog.artifacts.index([manifest])
    catalog.clips.add("night", [planned])
    found = catalog.clips.get("night", planned.clip.clip_id)
    assert found is not None
    assert (found.state, found.artifact_key, found.shard) == (ClipState.DONE, manifest.key, None)


def test_new_plan_moves_clips_between_shards_and_keeps_what_was_reached(catalog: Catalog, store: LocalStore) -> None:
    finished, broken, waiting = clips = [make_clip(number) for number in range(3)]
    enter(catalog, clips)
    manifest, other = publish(store), publish(store, seed=1)
    catalog.artifacts.index([manifest, other])
    catalog.runs.finish("night", [done(finished.clip_id, manifest), failed(broken.clip_id)])
    again = [PlannedClip(finished, 4), PlannedClip(broken, 5), PlannedClip(waiting, None, other.key)]
    catalog.clips.add("night", again)
    found = [catalog.clips.get("night", clip.clip_id) for clip in clips]
    assert [(record.state, record.shard) for record in found if record] == [("done", 4), ("failed", 5), ("done", None)]
    assert [record.artifact_key for record in found if record] == [manifest.key, None, other.key]


def test_clip_shared_by_batches_stands_in_each_by_itself(catalog: Catalog) -> None:
    (clip_id,) = enter(catalog, [make_clip(names=("a",))], "one")
    enter(catalog, [make_clip(names=("b",))], "two")
    catalog.clips.mark("two", [clip_id], ClipState.SKIPPED)
    states = {record.batch_id: (record.state, record.clip.names) for record in catalog.clips.search().rows}
    assert states == {"one": ("waiting", ("a",)), "two": ("skipped", ("b",))}


def test_clips_move_all_or_none_and_the_wrong_one_is_named(catalog: Catalog, store: LocalStore) -> None:
    one, two = enter(catalog, [make_clip(1), make_clip(2)])
    catalog.clips.mark("night", iter([one, two, one]), ClipState.RUNNING)
    catalog.clips.mark("night", [one], ClipState.FAILED, failed_stage=StageName.DECODE, reason="disk full")
    found = catalog.clips.get("night", one)
    assert found is not None
    assert (found.state, found.failed_stage, found.reason) == (ClipState.FAILED, "decode", "disk full")
    with pytest.raises(StateError, match=f"clip {one[:12]} is failed and cannot become cancelled"):
        catalog.clips.mark("night", [two, one], ClipState.CANCELLED)
    with pytest.raises(StateError, match=f"clip {'f' * 12} is not in the catalog"):
        catalog.clips.mark("night", [two, "f" * 64], ClipState.WAITING)
    assert ids(catalog, ClipQuery(state=ClipState.RUNNING)) == ["prompt 2"]
    catalog.clips.mark("night", [one, two], ClipState.WAITING)
    found = catalog.clips.get("night", one)
    assert found is not None
    assert (found.failed_stage, found.reason) == (None, None)


def test_no_clip_is_called_done_by_word_alone(catalog: Catalog) -> None:
    (clip_id,) = enter(catalog, [make_clip()])
    with pytest.raises(StateError, match="by the result of its last stage"):
        catalog.clips.mark("night", [clip_id], ClipState.DONE)


def searched(catalog: Catalog) -> None:
    clips: list[Clip] = [
        make_clip(1, prompt="A red fox, 100% real", tags=("fox", "red"), priority=5, names=("intro",)),
        make_clip(2, prompt="a FOX_cub sleeps", tags=("fox",), profile_name="540p", profile_digest=PLAIN),
        make_clip(3, prompt="夜の海", tags=("海", 'a"b')),
        make_clip(4, prompt="snow", tags=("foxes", "a, b"), priority=-1, names=("row 4", "Überblick")),
    ]
    enter(catalog, clips)
    catalog.clips.add("night", [PlannedClip(clips[0], 1)])


@pytest.mark.parametrize(
    ("query", "seeds"),
    [
        (ClipQuery(), [1, 2, 3, 4]),
        (ClipQuery(batch_id="night"), [1, 2, 3, 4]),
        (ClipQuery(batch_id="day"), []),
        (ClipQuery(text="fox"), [1, 2]),
        (ClipQuery(text="x_c"), [2]),
        (ClipQuery(text="100%"), [1]),
        (ClipQuery(text="%"), [1]),
        (ClipQuery(text="の海"), [3]),
        (ClipQuery(text="INTRO"), [1]),
        (ClipQuery(text="Überblick"), [4]),
        (ClipQuery(text=make_clip(4, prompt="snow").clip_id[:12].upper()), [4]),
        (ClipQuery(tag="fox"), [1, 2]),
        (ClipQuery(tag="fo"), []),
        (ClipQuery(tag="海"), [3]),
        (ClipQuery(tag='a"b'), [3]),
        (ClipQuery(tag="a, b"), [4]),
        (ClipQuery(tag="a"), []),
        (ClipQuery(profile="540p"), [2]),
        (ClipQuery(shard=1), [1]),
        (ClipQuery(state=ClipState.WAITING, tag="fox", text="red"), [1]),
    ],
)
def test_clips_are_found_by_every_condition(catalog: Catalog, query: ClipQuery, seeds: list[int]) -> None:
    searched(catalog)
    page = catalog.clips.search(query, sort=ClipSort.SEED, descending=False)
    assert ([record.clip.seed for record in page.rows], page.total) == (seeds, len(seeds))


@pytest.mark.parametrize("sort", list(ClipSort))
@pytest.mark.parametrize("descending", [False, True])
def test_every_order_is_the_same_on_every_page(catalog: Catalog, sort: ClipSort, descending: bool) -> None:
    searched(catalog)
    whole = ids(catalog, sort=sort, descending=descending)
    pages = [ids(catalog, sort=sort, descending=descending, offset=offset, limit=1) for offset in range(5)]
    assert [prompt for page in pages for prompt in page] == whole
    assert len(set(whole)) == 4
    if sort is ClipSort.PRIORITY:
        assert whole[0 if descending else -1] == "A red fox, 100% real"
