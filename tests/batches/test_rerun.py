"""Running a planned batch again: which clips, under which settings, reaching back how far."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from magi2.artifacts.local import LocalStore
from magi2.batches.batch_file import Batch
from magi2.batches.plan import BatchOptions, BatchPlan, plan_batch, save_plan
from magi2.batches.rerun import batch_clips, check_first_stage, rerun_batch, rerun_conf, select_clips
from magi2.config.load import load_profile
from magi2.config.profile import Profile
from magi2.config.settings import Settings
from magi2.errors import ConfigError, InputError
from magi2.recipes.book import RecipeBook
from magi2.types import Clip, StageName

WEIGHTS = dict.fromkeys(("text_encoder", "preview", "refiner", "video_vae", "turbo_vae", "audio_vae"), "0" * 64)
TINY = load_profile("tiny", Settings().configs)


def book(profile: Profile) -> RecipeBook:
    return RecipeBook(
        profile, fingerprints=WEIGHTS, negative_prompt="bad", enhancement_mode="off", enhancement_model=None
    )


def clip(number: int) -> Clip:
    return Clip(f"a heron, take {number}", number, TINY.name, TINY.digest(), names=(f"row {number}",))


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def plan(store: LocalStore) -> BatchPlan:
    batch = Batch(tuple(clip(number) for number in range(20)), ())
    planned = plan_batch(
        batch, name="night", source="night.jsonl", store=store, book_of=lambda _: book(TINY), options=BatchOptions()
    )
    save_plan(planned, store)
    return planned


def test_all_clips_come_back_by_default(store: LocalStore, plan: BatchPlan) -> None:
    assert {c.clip_id for c in batch_clips(store, plan.batch_id)} == {clip(n).clip_id for n in range(20)}
    assert len(select_clips(store, plan.batch_id, [])) == 20


def test_clips_are_chosen_by_id_or_by_failure(store: LocalStore, plan: BatchPlan) -> None:
    wanted = clip(3)
    assert select_clips(store, plan.batch_id, [wanted.short_id]) == (wanted,)
    failed = {"failed": [{"clip_id": clip(5).clip_id}, {"clip_id": None, "row": 9}]}
    store.put_document(f"batches/{plan.batch_id}/report.json", json.dumps(failed).encode())
    assert select_clips(store, plan.batch_id, ["failed"]) == (clip(5),)
    assert len(select_clips(store, plan.batch_id, ["failed", wanted.clip_id])) == 2


def test_unknown_clips_and_batches_are_refused(store: LocalStore, plan: BatchPlan) -> None:
    with pytest.raises(InputError, match="names 0 clips"):
        select_clips(store, plan.batch_id, ["zzzz"])
    with pytest.raises(InputError, match="names 20 clips"):
        select_clips(store, plan.batch_id, [""])
    with pytest.raises(InputError, match="not in the store"):
        select_clips(store, "0" * 16, [])
    store.put_document(f"batches/{plan.batch_id}/report.json", b'{"failed": []}')
    with pytest.raises(InputError, match="no clip failed"):
        select_clips(store, plan.batch_id, ["failed"])


def test_a_rerun_changes_the_profile_and_nothing_else(store: LocalStore, plan: BatchPlan, tmp_path: Path) -> None:
    batch, profiles = rerun_batch(
        store, plan.batch_id, only=[clip(1).clip_id], overrides=["refiner.steps=8"], scratch=tmp_path
    )
    (again,) = batch.clips
    (profile,) = profiles.values()
    assert profile.refiner is not None and profile.refiner.steps == 8
    assert (again.prompt, again.seed, again.names) == (clip(1).prompt, clip(1).seed, clip(1).names)
    assert again.profile_digest == profile.digest() != TINY.digest()
    with pytest.raises(ConfigError, match="stepz"):
        rerun_batch(store, plan.batch_id, only=[], overrides=["refiner.stepz=8"], scratch=tmp_path)


@pytest.mark.parametrize(
    ("override", "first"),
    [
        ("delivery.codec=hevc", StageName.MUX),
        ("decode.rounding=truncate", StageName.DECODE),
        ("refiner.steps=8", StageName.REFINE),
        ("preview.steps=9", StageName.PREVIEW),
        ("text.max_tokens=100", StageName.ENCODE),
    ],
)
def test_a_change_may_not_reach_back_before_the_stage_asked_for(override: str, first: StageName) -> None:
    order = list(StageName)
    for stage in order:
        if order.index(stage) <= order.index(first):
            check_first_stage([TINY], [override], stage, book)
        else:
            with pytest.raises(InputError, match=f"changes the {first.value} stage already"):
                check_first_stage([TINY], [override], stage, book)


def test_a_run_is_told_to_make_again_only_what_was_asked_for() -> None:
    def force(from_stage: StageName | None, *overrides: str) -> list[str]:
        conf = rerun_conf("ab" * 8, only=[], overrides=overrides, from_stage=from_stage, failure_limit=0)
        return list(conf["force"])

    assert force(StageName.DECODE) == ["decode", "mux"]
    assert force(None) == force(StageName.DECODE, "delivery.crf=20") == []
