"""Plans: what is finished stays out, shards within bounds, documents that need no original file, all without torch."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magi2.artifacts.local import LocalStore
from magi2.artifacts.manifest import ManifestDraft
from magi2.artifacts.recipe import Recipe
from magi2.batches.batch_file import BadRow, Batch
from magi2.batches.documents import load_batch
from magi2.batches.estimate import Estimate, estimate_seconds
from magi2.batches.failure_limit import OnLimit
from magi2.batches.plan import (
    MAX_SHARDS,
    MIN_CLIPS_PER_SHARD,
    BatchOptions,
    BatchPlan,
    load_shard,
    pack_shards,
    plan_batch,
    save_plan,
)
from magi2.batches.rerun import batch_clips
from magi2.batches.row_clips import MAX_PRIORITY
from magi2.batches.schema import OptionsDocument, RefusedRow
from magi2.checkpoints.layout import COMPONENTS
from magi2.config.load import load_profile
from magi2.config.profile import Profile, evaluated_settings
from magi2.errors import ContractError, ImageError, InputError
from magi2.prompts.caption import Caption
from magi2.recipes.book import RecipeBook
from magi2.types import Clip, StageName
from tests.render_helpers import CONFIGS, flip_byte, make_clip, payload_file, small_profile, stored_files, truncate

FINGERPRINTS = {name: f"{index:064x}" for index, name in enumerate(COMPONENTS)}
PROFILE = small_profile()
OTHER = small_profile("preview.steps=3")


def make_book(profile: Profile) -> RecipeBook:
    return RecipeBook(
        profile, fingerprints=FINGERPRINTS, negative_prompt="bad", enhancement_mode="off", enhancement_model=None
    )


BOOKS = {profile.digest(): make_book(profile) for profile in (PROFILE, OTHER)}


def plan(store: LocalStore, *clips: Clip, refused: Sequence[BadRow] = (), **arguments: Any) -> BatchPlan:
    options = arguments.pop("options", BatchOptions())
    batch = Batch(clips, tuple(refused))
    settled = {"name": "night", "source": "a.jsonl", "store": store, "book_of": BOOKS.__getitem__, "options": options}
    return plan_batch(batch, **{**settled, **arguments})


def publish(store: LocalStore, recipe: Recipe, name: str = "payload.bin", content: bytes = b"content") -> None:
    with store.stage_folder(recipe.stage, recipe.key) as folder:
        (folder / name).write_bytes(content)
        store.publish(ManifestDraft(recipe), {name: folder / name})


def pretend(store: LocalStore, clip: Clip, *stages: str) -> None:
    """Put artifacts of some stages of a clip in the store; their content does not matter to a plan."""
    book = BOOKS[clip.profile_digest]
    if "enhance" in stages:
        publish(store, book.enhance(clip), "caption.json", Caption(clip.prompt).to_json())
    for stage, recipe in book.chain(clip, clip.prompt).items():
        if stage.value in stages:
            publish(store, recipe)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


# -- what is to be done ------------------------------------------------------------------------------------------------


def test_a_plan_writes_nothing(store: LocalStore) -> None:
    clips = [make_clip(PROFILE, prompt) for prompt in ("fresh", "begun", "done")]
    pretend(store, clips[1], "enhance", "encode")
    pretend(store, clips[2], "enhance", "encode", "preview", "decode", "mux")
    before = stored_files(store.root)
    found = plan(store, *clips)
    assert stored_files(store.root) == before
    assert found.cached == (clips[2],)
    assert [shard.clips for shard in found.shards] == [(clips[0], clips[1])]
    assert found.missing == {"enhance": 1, "encode": 1, "preview": 2, "decode": 2, "mux": 2}
    assert (found.clips, found.profiles) == (3, {PROFILE.digest(): PROFILE})
    mux = BOOKS[PROFILE.digest()].chain(clips[2], "done")[StageName.MUX]
    assert found.finished == {clips[2].clip_id: mux.key}


def test_a_plan_of_a_store_that_is_not_there_yet_makes_none(tmp_path: Path) -> None:
    plan(LocalStore(tmp_path / "later"), make_clip(PROFILE))
    assert not (tmp_path / "later").exists()


def test_a_finished_clip_needs_nothing_that_led_to_it(store: LocalStore) -> None:
    clip = make_clip(PROFILE)
    pretend(store, clip, "enhance", "mux")
    assert plan(store, clip).cached == (clip,)


def test_without_a_caption_every_stage_counts_as_missing(store: LocalStore) -> None:
    clip = make_clip(PROFILE)
    pretend(store, clip, "encode", "preview", "decode", "mux")
    assert plan(store, clip).missing == dict.fromkeys(PROFILE.stages, 1)


def test_an_artifact_that_clips_share_counts_once(store: LocalStore) -> None:
    delivered = small_profile("delivery.crf=30")
    books = {**BOOKS, delivered.digest(): make_book(delivered)}
    clips = [make_clip(PROFILE, "one"), make_clip(delivered, "one"), make_clip(PROFILE, "one", seed=9)]
    found = plan(store, *clips, book_of=books.__getitem__)
    assert found.missing == {"enhance": 1, "encode": 1, "preview": 2, "decode": 2, "mux": 3}
    pretend(store, clips[0], "enhance")
    found = plan(store, *clips, book_of=books.__getitem__)
    assert found.missing == {"encode": 1, "preview": 2, "decode": 2, "mux": 3}


@pytest.mark.parametrize("damage", [flip_byte, truncate])
@pytest.mark.parametrize("stage", ["enhance", "preview", "mux"])
def test_damage_means_to_do_and_never_ends_the_plan(
    stage: str, damage: Callable[[Path], None], store: LocalStore
) -> None:
    clip = make_clip(PROFILE)
    stages = ["enhance", "encode", "preview", "decode"] + (["mux"] if stage == "mux" else [])
    pretend(store, clip, *stages)
    book = BOOKS[PROFILE.digest()]
    recipe = {StageName.ENHANCE: book.enhance(clip), **book.chain(clip, clip.prompt)}[StageName(stage)]
    damage(payload_file(store.root, stage, recipe.key, "caption.json" if stage == "enhance" else "payload.bin"))
    before = stored_files(store.root)
    found = plan(store, clip, make_clip(PROFILE, "another"))
    assert stored_files(store.root) == before
    if damage is truncate or stage == "enhance":
        assert clip in found.shards[0].clips and found.missing[stage] == 2
    else:
        assert found.missing.get(stage, 0) == 1, "digests are checked when a payload is read"


def test_force_puts_every_clip_into_shards(store: LocalStore) -> None:
    clip = make_clip(PROFILE)
    pretend(store, clip, "enhance", "encode", "preview", "decode", "mux")
    found = plan(store, clip, options=BatchOptions(force=("decode",)))
    assert (found.cached, [shard.clips for shard in found.shards]) == ((), [(clip,)])


@pytest.mark.parametrize("sign", [1, -1])
def test_a_batch_may_go_as_far_before_others_as_a_row(sign: int) -> None:
    assert BatchOptions(priority=sign * MAX_PRIORITY).priority == sign * 1_000_000
    with pytest.raises(InputError, match="must be from -1000000 to 1000000"):
        BatchOptions(priority=sign * (MAX_PRIORITY + 1))


def test_bad_rows_are_refused_or_skipped(store: LocalStore) -> None:
    bad = BadRow(3, "the prompt is empty")
    with pytest.raises(InputError, match=r"1 bad rows, nothing was started:\n  line 3: the prompt is empty"):
        plan(store, make_clip(PROFILE), refused=[bad])
    skipped = plan(store, make_clip(PROFILE), refused=[bad], options=BatchOptions(on_bad_rows="skip"))
    assert (skipped.refused, skipped.clips) == ((bad,), 1)


def test_an_empty_plan_is_a_plan(store: LocalStore) -> None:
    nothing = plan(store, refused=[BadRow(1, "x")], options=BatchOptions(on_bad_rows="skip"))
    save_plan(nothing, store)
    assert nothing.shards == () and load_batch(store, nothing.batch_id).shards == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"failure_limit": -1}, "failure_limit is -1"),
        ({"on_bad_rows": "ignore"}, "on_bad_rows is 'ignore', must be refuse or skip"),
        ({"force": ("mix",)}, "force names 'mix', known stages are enhance"),
        ({"force": ("negative",)}, "force names 'negative', known stages are enhance"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        BatchOptions(**options)


# -- shards ------------------------------------------------------------------------------------------------------------


def many(count: int, profile: Profile = PROFILE) -> list[Clip]:
    digest = profile.digest()
    return [Clip(f"clip {number}", number, profile.name, digest) for number in range(count)]


@pytest.mark.parametrize(
    ("clips", "shards", "largest"),
    [(0, 0, 0), (1, 1, 1), (16, 1, 16), (17, 2, 16), (2048, 128, 16), (2049, 121, 17), (50_000, 128, 391)],
)
def test_shards_of_one_profile(clips: int, shards: int, largest: int) -> None:
    packed = pack_shards(many(clips), {PROFILE.digest(): PROFILE})
    assert len(packed) == shards <= MAX_SHARDS
    assert max((len(shard.clips) for shard in packed), default=0) == largest
    assert [shard.number for shard in packed] == list(range(shards))
    assert [clip for shard in packed for clip in shard.clips] == many(clips)


def fake_profiles(count: int) -> dict[str, Profile]:
    return {f"{number:064x}": PROFILE for number in range(count)}


def spread(sizes: Sequence[int]) -> list[Clip]:
    clips = [Clip(f"{p} {n}", n, "tiny", f"{p:064x}") for p, size in enumerate(sizes) for n in range(size)]
    random.Random(0).shuffle(clips)
    return clips


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 900), min_size=1, max_size=12) | st.lists(st.integers(1, 3), min_size=100, max_size=128),
    st.none() | st.integers(1, 50),
)
def test_shards_never_exceed_the_map_length_and_never_mix_profiles(sizes: list[int], wished: int | None) -> None:
    clips = spread(sizes)
    packed = pack_shards(clips, fake_profiles(len(sizes)), wished)
    assert len(packed) <= MAX_SHARDS
    assert sorted(c.clip_id for shard in packed for c in shard.clips) == sorted(clip.clip_id for clip in clips)
    assert all(len({clip.profile_digest for clip in shard.clips}) == 1 and shard.clips for shard in packed)
    size = max(len(shard.clips) for shard in packed)
    least = wished or max(MIN_CLIPS_PER_SHARD, ceil(len(clips) / MAX_SHARDS))
    assert size <= least or sum(ceil(count / (size - 1)) for count in sizes) > MAX_SHARDS, "no larger than needed"


def test_a_large_batch_of_many_profiles_is_packed_at_once() -> None:
    packed = pack_shards(spread([50_000, *[1] * 127]), fake_profiles(128))
    assert len(packed) == MAX_SHARDS


def test_more_profiles_than_tasks_are_refused() -> None:
    with pytest.raises(InputError, match="clips of 129 profiles, a batch has at most 128"):
        pack_shards(spread([1] * 129), fake_profiles(129))


@pytest.mark.parametrize("size", [0, -3])
def test_a_shard_holds_at_least_one_clip(size: int) -> None:
    with pytest.raises(InputError, match=f"clips_per_shard is {size}"):
        pack_shards(many(3), {PROFILE.digest(): PROFILE}, size)


def test_urgent_clips_come_first_and_equals_keep_their_order() -> None:
    priorities = [0, 5, 0, 9, 5]
    clips = [replace(clip, priority=priority) for clip, priority in zip(many(5), priorities, strict=True)]
    packed = pack_shards(clips, {PROFILE.digest(): PROFILE}, clips_per_shard=2)
    assert [[clip.seed for clip in shard.clips] for shard in packed] == [[3, 1], [4, 0], [2]]


def test_each_profile_has_shards_of_its_own(store: LocalStore) -> None:
    clips = [make_clip(profile, prompt) for prompt in ("a", "b") for profile in (PROFILE, OTHER)]
    found = plan(store, *clips)
    assert [(shard.profile, [clip.prompt for clip in shard.clips]) for shard in found.shards] == [
        (PROFILE, ["a", "b"]),
        (OTHER, ["a", "b"]),
    ]


# -- identity ----------------------------------------------------------------------------------------------------------


def test_a_batch_is_the_same_whatever_the_order_of_its_rows(store: LocalStore) -> None:
    clips = many(5)
    named = [replace(clip, names=("other",), priority=3) for clip in reversed(clips)]
    first, second = plan(store, *clips), plan(store, *named, name="else", source="b.csv")
    assert first.batch_id == second.batch_id and len(first.batch_id) == 16


def test_clips_options_and_origin_make_another_batch(store: LocalStore) -> None:
    clips = many(3)
    plans = [
        plan(store, *clips),
        plan(store, *clips[:2]),
        plan(store, *clips, options=BatchOptions(failure_limit=1)),
        plan(store, *clips, options=BatchOptions(force=("mux",))),
        plan(store, *clips, origin={"run_id": "one"}),
        plan(store, *clips, origin={"run_id": "two"}),
    ]
    assert len({found.batch_id for found in plans}) == len(plans)
    pretend(store, clips[0], "enhance", "mux")
    assert plan(store, *clips).batch_id == plans[0].batch_id, "what is finished meanwhile does not count"


# -- documents ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def picture(tmp_path: Path, golden: Path) -> Path:
    return Path(shutil.copy(golden / "output" / "images" / "wide_160x90.png", tmp_path / "first.png"))


def test_a_shard_is_read_back_after_its_images_are_gone(store: LocalStore, picture: Path, tmp_path: Path) -> None:
    clip = replace(make_clip(PROFILE, "«é» 🎲", image=picture), names=("a", "b"), tags=("t",), priority=-2)
    found = plan(store, clip, make_clip(OTHER), origin={"dag_id": "night", "run_id": "r1"})
    content = picture.read_bytes()
    save_plan(found, store)
    picture.unlink()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    shard = load_shard(store, found.batch_id, 0, scratch)
    assert (shard.number, shard.profile) == (0, PROFILE)
    (read,) = shard.clips
    assert (read.clip_id, read.names, read.tags, read.priority) == (clip.clip_id, ("a", "b"), ("t",), -2)
    assert read.figures[0].path.parent == scratch and read.figures[0].path.read_bytes() == content
    assert load_shard(store, found.batch_id, 0, scratch).clips == shard.clips, "a second reader finds the image there"
    assert load_shard(store, found.batch_id, 1, scratch).profile.digest() == OTHER.digest()


def test_the_batchs_document_says_what_was_asked(store: LocalStore) -> None:
    options = BatchOptions(failure_limit=2, on_bad_rows="skip", force=("mux",))
    found = plan(store, *many(3), refused=[BadRow(9, "why")], options=options, origin={"run_id": "r1"})
    save_plan(found, store)
    document = load_batch(store, found.batch_id)
    asked: dict[str, Any] = {
        "failure_limit": 2,
        "on_bad_rows": "skip",
        "force": ("mux",),
        "priority": 0,
        "budget": None,
        "on_limit": OnLimit.STOP,  # as it was resolved: of a limit from 1 on
    }
    assert document.options == OptionsDocument(**asked)
    assert document.refused == (RefusedRow(row=9, reason="why"),)
    assert (document.name, document.source, document.clips, document.shards) == ("night", "a.jsonl", 3, 1)
    assert (document.run_id, document.dag_id) == ("r1", None)
    assert document.profiles == {PROFILE.digest(): json.loads(PROFILE.model_dump_json())}


def test_images_of_finished_clips_are_kept_for_a_rerun(store: LocalStore, picture: Path) -> None:
    clip = make_clip(PROFILE, image=picture)
    pretend(store, clip, "enhance", "mux")
    found = plan(store, clip)
    assert found.cached == (clip,)
    save_plan(found, store)
    assert store.get_document(f"images/{clip.figures[0].sha256}") == picture.read_bytes()
    assert batch_clips(store, found.batch_id) == (clip,)


def test_a_batch_is_there_only_when_it_is_whole(store: LocalStore, picture: Path) -> None:
    found = plan(store, make_clip(PROFILE, image=picture))
    picture.write_bytes(b"something else")
    with pytest.raises(ImageError, match=r"first.png: changed since the batch was read"):
        save_plan(found, store)
    picture.unlink()
    with pytest.raises(ImageError, match=r"first.png: No such file"):
        save_plan(found, store)
    with pytest.raises(InputError, match=r"batch.json is not in the store"):
        load_batch(store, found.batch_id)


def test_an_image_that_is_damaged_or_absent_in_the_store_is_not_used(
    store: LocalStore, picture: Path, tmp_path: Path
) -> None:
    found = plan(store, make_clip(PROFILE, image=picture))
    save_plan(found, store)
    (image,) = (store.root / "documents" / "images").iterdir()
    flip_byte(image)
    with pytest.raises(ContractError, match="is damaged in the store"):
        load_shard(store, found.batch_id, 0, tmp_path)
    image.unlink()
    with pytest.raises(ContractError, match="is not in the store"):
        load_shard(store, found.batch_id, 0, tmp_path)
    save_plan(found, store)
    assert load_shard(store, found.batch_id, 0, tmp_path).clips, "planning it again heals"


def test_an_unknown_batch_or_shard_is_one_line(store: LocalStore, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"batches/none/batch.json is not in the store file:///"):
        load_batch(store, "none")
    found = plan(store, make_clip(PROFILE))
    save_plan(found, store)
    with pytest.raises(InputError, match=r"shards/1.json is not in the store"):
        load_shard(store, found.batch_id, 1, tmp_path)


# -- imports -----------------------------------------------------------------------------------------------------------

TORCH_FREE = (
    "magi2.types, magi2.errors, magi2.artifacts, magi2.config.load, magi2.config.settings, magi2.recipes.book, "
    "magi2.recipes.load, magi2.recipes.captions, magi2.batches.batch_file, magi2.batches.plan, magi2.batches.rerun, "
    "magi2.batches.estimate, magi2.batches.retention, magi2.checkpoints.layout"
)


@pytest.mark.slow
def test_planning_imports_no_heavy_library() -> None:
    code = (
        f"import sys; import {TORCH_FREE};"
        "heavy = {'torch', 'transformers', 'triton', 'tokenizers', 'openai', 'av', 'airflow', 'sqlalchemy'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_previews_are_estimated_by_their_evaluations(tmp_path: Path) -> None:
    """Samples of one schedule tell what previews of another take, of the same profile's name."""
    store = LocalStore(tmp_path / "store")
    whole, draft = (load_profile("tiny-preview", CONFIGS, each) for each in ([], ["preview.quality=draft"]))
    recipe = Recipe("preview", 2, config=evaluated_settings(whole.preview.model_dump(mode="json")))
    with store.stage_folder(recipe.stage, recipe.key) as folder:
        (folder / "x").write_bytes(b"x")
        drafted = ManifestDraft(recipe=recipe, timings={"make_s": 32.0}, report={"profile": "tiny-preview"})
        store.publish(drafted, {"x": folder / "x"})
    assert whole.preview.evaluated.evaluations(8) == 16 and draft.preview.evaluated.evaluations(8) == 8

    def seconds(**missing: int) -> float:
        profiles = {"whole": whole, "draft": draft}
        counts = {name: {"preview": count} for name, count in missing.items()}
        plan = BatchPlan("b", "n", "s", BatchOptions(), (), (), (), {}, profiles, missing_of=counts)
        return estimate_seconds(plan, store).total_s

    assert (seconds(whole=3), seconds(draft=3), seconds(whole=1, draft=1)) == (96.0, 48.0, 48.0)


def test_previews_of_another_size_are_estimated_by_their_pixels(tmp_path: Path) -> None:
    """Before, a portrait profile had no estimate, and another size was told to cost what the measured one did."""
    store = LocalStore(tmp_path / "store")
    measured, portrait, large = (
        load_profile(name, CONFIGS, sizes)
        for name, sizes in (
            ("tiny-preview", []),
            ("tiny-portrait", ["refiner=null"]),
            ("tiny-preview", ["preview.width=256", "preview.height=128"]),
        )
    )
    config = evaluated_settings(measured.preview.model_dump(mode="json"))
    architecture = json.loads(json.dumps(asdict(measured.architectures.preview)))
    recipe = Recipe("preview", 2, config=config | {"architecture": architecture})
    with store.stage_folder(recipe.stage, recipe.key) as folder:
        (folder / "x").write_bytes(b"x")
        drafted = ManifestDraft(recipe=recipe, timings={"make_s": 32.0}, report={"profile": "tiny-preview"})
        store.publish(drafted, {"x": folder / "x"})
    for profile, expected in ((measured, 32.0), (portrait, 32.0), (large, 128.0)):
        missing = {"one": {"preview": 1}}
        plan = BatchPlan("b", "n", "s", BatchOptions(), (), (), (), {}, {"one": profile}, missing_of=missing)
        assert estimate_seconds(plan, store) == Estimate(expected, ())
    faster = load_profile("tiny-preview", CONFIGS, ["compute.weights=fp8"])  # of which nothing is known
    plan = BatchPlan("b", "n", "s", BatchOptions(), (), (), (), {}, {"one": faster}, missing_of={"one": {"preview": 1}})
    assert estimate_seconds(plan, store) == Estimate(0.0, ("preview",))
    demo = load_profile("demo", CONFIGS)  # another network
    plan = BatchPlan("b", "n", "s", BatchOptions(), (), (), (), {}, {"one": demo}, missing_of={"one": {"preview": 1}})
    assert estimate_seconds(plan, store) == Estimate(0.0, ("preview",))
