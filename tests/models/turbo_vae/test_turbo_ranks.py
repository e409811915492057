"""The turbo decoder's windows on several ranks: bits, order, bounds, and what happens when a rank stops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.models.turbo_vae.turbo_on_ranks import LATENTS, clip, toy
from tests.rank_launch import launch

pytestmark = pytest.mark.ranks
WORLDS = (2, 4)
Spread = tuple[list[dict[str, Any]], dict[str, Tensor]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what the ranks of every world found."""
    folder = tmp_path_factory.mktemp("turbo")
    launch("tests.models.turbo_vae.turbo_on_ranks", WORLDS, folder)
    return folder


@pytest.fixture(params=WORLDS)
def spread(request: pytest.FixtureRequest, found: Path) -> Spread:
    folder = found / str(request.param)
    facts = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(request.param)]
    return facts, load_file(folder / "frames.safetensors")


def test_frames_are_the_bits_of_one_rank_in_order(spread: Spread) -> None:
    wanted = torch.cat(list(toy().decode(clip(1))), dim=2)
    assert torch.equal(spread[1]["frames"], wanted)


def test_only_the_first_rank_hands_frames_on(spread: Spread) -> None:
    windows = [fact["windows"] for fact in spread[0]]
    assert windows == [len(toy().plan(LATENTS)), *[0] * (len(windows) - 1)]


def test_no_rank_is_more_than_one_window_ahead(spread: Spread) -> None:
    assert 0 <= spread[0][0]["ahead"] <= 1


def test_each_window_of_another_rank_travels_once(spread: Spread) -> None:
    facts, results = spread
    frame_bytes = results["frames"][:, :, 0].nbytes
    plan = toy().plan(LATENTS)
    for rank, fact in enumerate(facts):
        own = plan[rank :: len(facts)] if rank else ()
        assert fact["sent"] == frame_bytes * sum(window.frame_count for window in own)


def test_a_first_rank_that_stops_early_leaves_nobody_waiting(spread: Spread) -> None:
    assert [fact["first"] for fact in spread[0]] == [1, *[0] * (len(spread[0]) - 1)]
    assert torch.equal(spread[1]["again"], spread[1]["frames"])


def test_a_failing_rank_raises_there_and_its_windows_arrive_as_nan(spread: Spread) -> None:
    facts, size = spread[0], len(spread[0])
    assert [fact.get("error") for fact in facts] == [None, "no room", *[None] * (size - 2)]
    owed = range(1 + size, len(toy().plan(LATENTS)), size)
    assert facts[0]["finite"] == [index not in owed for index in range(len(toy().plan(LATENTS)))]
