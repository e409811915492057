"""`magi2 compare`: clips of one prompt, the least alike first, with a link to the page that shows both."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from magi2.artifacts.local import LocalStore
from magi2.batches.results import write_results
from magi2.media.ffmpeg import find_ffmpeg
from magi2.types import CLIP, Clip, StageName
from tests.cli.cli_said import Magi2
from tests.media.media_clips import write_lossless
from tests.report_samples import clip, planned, publish_files, result_of, run_stages

pytestmark = pytest.mark.slow  # it writes and reads videos
FRAMES = torch.randint(40, 200, (2, 32, 32, 3), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def batch(store: LocalStore, folder: Path, name: str, looks: dict[Clip, int]) -> str:
    """A batch whose clips are delivered, each of the same frames made so much brighter."""
    plan = planned(store, list(looks))
    run_stages(store, plan, {})
    for shard in plan.shards:
        made = []
        for each in shard.clips:
            path = write_lossless(folder / f"{name}{each.seed}.mkv", FRAMES + looks[each], program=find_ffmpeg())
            key = publish_files(store, each, {CLIP: path.read_bytes()})
            made.append(replace(result_of(each, StageName.MUX, {}), key=key))
        write_results(store, plan.batch_id, shard.number, StageName.MUX, 1, made)
    return plan.batch_id


def test_pairs_come_the_least_alike_first_with_a_link(tmp_path: Path, magi2: Magi2) -> None:
    store = LocalStore(tmp_path / "store")
    alike, unlike, alone = clip(1), clip(2), clip(3)
    reseeded = replace(alike, seed=77), replace(unlike, seed=78)
    one = batch(store, tmp_path, "one", {alike: 0, unlike: 0, alone: 0})
    other = batch(store, tmp_path, "other", {reseeded[0]: 5, reseeded[1]: 30})
    said = magi2("compare", one, other, "--json", "--out", tmp_path / "likeness.json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert json.loads((tmp_path / "likeness.json").read_text()) == found
    assert [row["clip"] for row in found["clips"]] == ["row 2", "row 1"]
    assert found["clips"][1]["psnr_db"] > found["clips"][0]["psnr_db"] > 0
    assert found["clips"][0]["seeds"] == [2, 78] and found["clips"][0]["video_cosine"] is None
    link = f"/plugin/renders?batch={one}&clip={unlike.clip_id}&other={other}%3A{reseeded[1].clip_id}"
    assert found["clips"][0]["link"] == link
    assert "never by hash" in found["note"] and found["note"] in magi2("compare", one, other).out
    assert found["mean"]["ssim"] == pytest.approx(sum(row["ssim"] for row in found["clips"]) / 2)
    assert found["mean"]["video_cosine"] is None
    assert found["without_counterpart"] == [f"{one}:{alone.clip_id}"]
    assert "row 2" in magi2("compare", one, other).out


def test_a_clip_is_compared_with_that_of_its_own_seed(tmp_path: Path, magi2: Magi2) -> None:
    store, first = LocalStore(tmp_path / "store"), clip(1)
    one = batch(store, tmp_path, "one", {first: 0})
    other = batch(store, tmp_path, "other", {replace(first, seed=9): 30, first: 0})
    (row,) = json.loads(magi2("compare", one, other, "--json").out)["clips"]
    assert row["seeds"] == [1, 1] and row["psnr_db"] is None


def test_batches_that_have_nothing_in_common_are_refused(tmp_path: Path, magi2: Magi2) -> None:
    store = LocalStore(tmp_path / "store")
    one, other = (batch(store, tmp_path, name, {clip(n): 0}) for name, n in (("one", 1), ("other", 2)))
    said = magi2("compare", one, other)
    assert said.code == 2 and "no prompt in common" in said.err
