"""The dry run: how many clips, the first of them as they will be rendered, equal rows, work and cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from magi2.artifacts.local import LocalStore
from magi2.batches.documents import load_batch, load_shard_document
from magi2.batches.dry_run import MOST_EQUAL, DryRun, dry_run
from magi2.batches.intake import plan_location
from magi2.batches.plan import SHOWN_CLIPS, BatchOptions, BatchPlan, save_plan
from magi2.batches.rerun import rerun_batch
from magi2.batches.spread import NO_SPREAD, Spread
from magi2.config.price import Price
from magi2.config.settings import Settings
from magi2.errors import InputError
from magi2.inputs.limits import MAX_PROMPT_CHARS

KITE = {"prompt": "a kite", "name": "kite"}


def plan_of(
    checkpoint: Path, folder: Path, *rows: dict[str, Any], spread: Spread = NO_SPREAD, overrides: tuple[str, ...] = ()
) -> BatchPlan:
    file = folder / "night.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return plan_location(
        str(file),
        settings=Settings(ckpt_root=checkpoint),
        store=LocalStore(folder / "store"),
        profile="tiny",
        overrides=overrides,
        options=BatchOptions(),
        spread=spread,
    )


def dry(plan: BatchPlan, folder: Path, price: Price | None = None) -> DryRun:
    return dry_run(plan, LocalStore(folder / "store"), price=price)


def test_clips_are_counted_as_rows_stand_for_them_and_the_first_are_shown(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    rows = ({**KITE, "variants": 2}, {"prompt": "a {red|blue} dune", "preview": {"steps": 4}}, KITE)
    found = dry(plan_of(tiny_checkpoint, tmp_path, *rows, spread=Spread(matrix=True)), tmp_path)
    assert (found.rows, found.clips, found.repeats, found.cached) == (5, 4, 1, 0)
    assert [(each.where, each.name, each.profile, each.finished) for each in found.first] == [
        ("line 1", "kite", "tiny", False),
        ("line 1", "kite-v2", "tiny", False),
        ("line 2", "row 2-red", "tiny + preview.steps=4", False),
        ("line 2", "row 2-blue", "tiny + preview.steps=4", False),
    ]
    assert found.equal == (f"line 3 is the clip of line 1 again ({found.first[0].clip[:12]})",)
    assert [(shard.profile, shard.clips) for shard in found.shards] == [("tiny", 2), ("tiny + preview.steps=4", 2)]
    assert json.loads(json.dumps(found.to_json()))["first"][2]["prompt"] == "a red dune"
    said = "\n".join(found.lines())
    assert not {first.prompt for first in found.first if first.prompt in "\n".join(found.work_lines())}, "for a log"
    assert "line 2, row 2-red, seed " in said and "line 3 is the clip of line 1 again" in said


def test_only_the_first_clips_and_equal_rows_are_told_one_by_one(tiny_checkpoint: Path, tmp_path: Path) -> None:
    rows = ({**KITE, "variants": 30}, *(KITE for _ in range(MOST_EQUAL + 2)))
    found = dry(plan_of(tiny_checkpoint, tmp_path, *rows), tmp_path)
    assert len(found.first) == SHOWN_CLIPS and len(found.to_json()["equal"]) == MOST_EQUAL
    assert "and 2 more" in "\n".join(found.lines())


def test_cost_is_told_last_and_held_against_the_budget(tiny_checkpoint: Path, tmp_path: Path) -> None:
    found = dry(plan_of(tiny_checkpoint, tmp_path, KITE), tmp_path, Price(1.0, "EUR"))
    assert list(found.lines())[-1] == "about 0.00 EUR" and (found.cost, found.currency) == (0.0, "EUR")


def test_forty_rows_with_settings_of_their_own_are_planned_and_run_again_under_their_names(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    rows = [{"prompt": f"kite {steps}", "preview.steps": steps} for steps in range(10, 50)]
    plan = plan_of(tiny_checkpoint, tmp_path, *rows)
    store = LocalStore(tmp_path / "store")
    save_plan(plan, store)
    batch = load_batch(store, plan.batch_id)
    titles = {batch.profile(digest).title for digest in batch.profiles}
    assert len(batch.profiles) == len(plan.shards) == 40 and "tiny + preview.steps=49" in titles
    shard = load_shard_document(store, plan.batch_id, 0)
    assert shard.clips[0].profile_name == batch.profile(shard.profile_digest).title
    again, profiles = rerun_batch(store, plan.batch_id, only=(), overrides=(), scratch=tmp_path)
    assert {clip.clip_id for clip in again.clips} == {clip.clip_id for each in plan.shards for clip in each.clips}
    assert {profile.title for profile in profiles.values()} == titles
    changed, (one,) = rerun_batch(store, plan.batch_id, only=(), overrides=("preview.steps=3",), scratch=tmp_path)
    assert {clip.profile_name for clip in changed.clips} == {"tiny"}
    assert {clip.profile_digest for clip in changed.clips} == {one} and len(changed.clips) == 40


def test_a_negative_prompt_of_too_many_tokens_is_its_rows_fault(tiny_checkpoint: Path, tmp_path: Path) -> None:
    long = {**KITE, "negative_prompt": "fog " * (MAX_PROMPT_CHARS // 4 - 1)}
    with pytest.raises(
        InputError, match=r"1 bad rows.*\n  line 2: profile tiny \+ .* its negative prompt: .* tokens, limit 7,000"
    ):
        plan_of(tiny_checkpoint, tmp_path, KITE, long)


def test_sizes_that_a_rows_fit_does_not_reach_are_its_fault_alone(tiny_checkpoint: Path, tmp_path: Path) -> None:
    covered = ("delivery.size=[128, 128]", "delivery.fit=cover")
    assert plan_of(tiny_checkpoint, tmp_path, KITE, overrides=covered).clips == 1
    with pytest.raises(InputError, match=r"1 bad rows.*\n  line 2: .*stretch"):
        plan_of(tiny_checkpoint, tmp_path, KITE, {**KITE, "delivery.fit": "scale"}, overrides=covered)
