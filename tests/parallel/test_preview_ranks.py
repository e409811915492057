"""The preview transformer on 2, 4 and 8 gloo ranks equals itself on one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from magi2.parallel.layout import ParallelLayout
from tests.rank_launch import SUMMATION_ERROR

REPOSITORY = Path(__file__).parents[2]
WORLDS = (2, 4, 8)
LAYOUTS = {
    2: ("sp2", "sp2.ep1", "sp1.cfg2", "sp1.cfg2.ep2"),
    4: ("sp4", "sp4.ep2", "sp2.cfg2", "sp2.cfg2.ep4"),
    8: ("sp8.ep8", "sp8.ep4", "sp4.cfg2.ep4", "sp4.cfg2.ep8"),
}
CASES = [(world, f"{name} {dtype}") for world, names in LAYOUTS.items() for name in names for dtype in ("fp32", "bf16")]
pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """What each rank of each world found; all of them started once."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "tests.parallel.rank_worlds", str(folder)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    return {
        world: [json.loads((folder / f"world{world}-rank{rank}.json").read_text()) for rank in range(world)]
        for world in WORLDS
    }


def models(found: dict[int, list[dict[str, Any]]], world: int, case: str) -> list[dict[str, Any]]:
    return [rank["models"][case] for rank in found[world]]


def test_every_layout_was_run(found: dict[int, list[dict[str, Any]]]) -> None:
    for world in WORLDS:
        for rank in found[world]:
            assert list(rank["models"]) == [case for other, case in CASES if other == world]


@pytest.mark.parametrize(("world", "case"), CASES)
def test_velocities_equal_those_of_one_rank(world: int, case: str, found: dict[int, list[dict[str, Any]]]) -> None:
    limit = SUMMATION_ERROR if case.endswith("fp32") else 1e-2
    for rank in models(found, world, case):
        assert max(rank["errors"]) <= limit


@pytest.mark.parametrize("world", WORLDS)
def test_published_velocities_come_out_on_every_rank(world: int, found: dict[int, list[dict[str, Any]]]) -> None:
    for rank in found[world]:
        assert max(rank["golden"]) < 1e-5


def test_digests_do_not_depend_on_the_expert_layout(found: dict[int, list[dict[str, Any]]]) -> None:
    """Nor on the rank, nor on whether the model ran before."""
    digests: dict[tuple[int, int, str], set[str]] = {}
    for world, case in CASES:
        name, dtype = case.split()
        layout = ParallelLayout.parse(name)
        for rank in models(found, world, case):
            digests.setdefault((layout.cp, layout.cfg, dtype), set()).update(rank["digests"])
    assert len(digests) == 2 * 6
    assert all(len(same) == 1 for same in digests.values()), digests


@pytest.mark.parametrize(("world", "case"), CASES)
def test_bytes_on_the_wire_are_those_of_the_formula(
    world: int, case: str, found: dict[int, list[dict[str, Any]]]
) -> None:
    for rank in models(found, world, case):
        assert rank["sent_bytes"] == rank["formula_bytes"]


@pytest.mark.parametrize(("world", "case"), [(world, case) for world, case in CASES if "cfg2" not in case])
def test_lengths_differ_by_one_token_at_most(world: int, case: str, found: dict[int, list[dict[str, Any]]]) -> None:
    counts = models(found, world, case)[0]["token_counts"]
    assert sum(counts) == 209 and max(counts) - min(counts) == 1


def test_every_rank_holds_an_equal_share_of_the_experts(found: dict[int, list[dict[str, Any]]]) -> None:
    """12 heads on 8 ranks: one and a half each, nothing padded, nobody idle."""
    whole, eighth = (models(found, 2, "sp2.ep1 bf16"), models(found, 8, "sp8.ep8 bf16"))
    expert_bytes = 2 * 3 * 12 * 8 * 32 * 64 * 2  # two layers of three matrices for 12 x 8 experts
    gates = 2 * 12 * 8 * (32 + 2) * 4  # fp32 rows of the router: a rank has those of two heads
    assert {rank["held_bytes"] for rank in eighth} == {
        whole[0]["held_bytes"] - expert_bytes * 7 // 8 - gates * 10 // 12
    }


def test_loading_takes_little_more_than_the_rank_keeps(found: dict[int, list[dict[str, Any]]]) -> None:
    for rank in found[2]:
        assert rank["memory"]["held"] > 20 << 20
        assert rank["memory"]["peak"] < 1.2 * rank["memory"]["held"]


def test_time_spent_waiting_is_known(found: dict[int, list[dict[str, Any]]]) -> None:
    assert all(rank["exposed_s"] > 0 for rank in models(found, 4, "sp4 bf16"))


def test_exchanges_are_laid_out_as_published(found: dict[int, list[dict[str, Any]]]) -> None:
    for rank in found[4]:
        assert rank["published_layout"] == dict.fromkeys(("queries", "keys", "home", "experts", "results"), True)
