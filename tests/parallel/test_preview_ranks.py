"""The preview transformer on 2, 4 and 8 gloo ranks equals itself on one.

`make test` runs a layout of every kind; all of them, in both dtypes, come with the marker `faults`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from magi2.parallel.layout import ParallelLayout
from tests.rank_launch import SUMMATION_ERROR

REPOSITORY = Path(__file__).parents[2]
WORLDS = (2, 4, 8)
LAYOUTS = (
    *("sp2", "sp2.ep1", "sp1.cfg2", "sp1.cfg2.ep2"),
    *("sp4", "sp4.ep2", "sp2.cfg2", "sp2.cfg2.ep4"),
    *("sp8.ep8", "sp8.ep4", "sp4.cfg2.ep4", "sp4.cfg2.ep8"),
)
EVERY = [f"{name} {dtype}" for name in LAYOUTS for dtype in ("fp32", "bf16", "fp8")]
CHOSEN = [
    *("sp2 fp32", "sp2 bf16", "sp2.ep1 fp32", "sp2.ep1 bf16", "sp1.cfg2 fp32", "sp1.cfg2.ep2 fp32"),
    *("sp2.cfg2.ep4 fp32", "sp2.cfg2.ep4 bf16"),
    *("sp8.ep8 fp32", "sp8.ep8 bf16"),
    *("sp2 fp8", "sp2.ep1 fp8"),
]
"""Tokens, guidance halves and experts spread alone and together, over few ranks and over more than divide the heads."""
pytestmark = pytest.mark.ranks


@dataclass(frozen=True)
class Found:
    """What each rank of each world found."""

    cases: list[str]
    worlds: dict[int, list[dict[str, Any]]]

    def ranks(self, case: str) -> list[dict[str, Any]]:
        world = ParallelLayout.parse(case.split()[0]).num_ranks
        return [rank["models"][case] for rank in self.worlds[world]]


@pytest.fixture(scope="module", params=[CHOSEN, pytest.param(EVERY, marks=pytest.mark.faults)], ids=["chosen", "every"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """All worlds, started once."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "tests.parallel.rank_worlds", str(folder), *request.param]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    worlds = {
        world: [json.loads((folder / f"world{world}-rank{rank}.json").read_text()) for rank in range(world)]
        for world in WORLDS
    }
    return Found(request.param, worlds)


def test_every_case_was_run_on_every_rank(found: Found) -> None:
    assert sorted(case for world in WORLDS for case in found.worlds[world][0]["models"]) == sorted(found.cases)
    for ranks in found.worlds.values():
        assert all(list(rank["models"]) == list(ranks[0]["models"]) for rank in ranks)


def test_velocities_equal_those_of_one_rank(found: Found) -> None:
    for case in found.cases:
        limit = SUMMATION_ERROR if case.endswith("fp32") else 1e-2
        errors = [max(rank["errors"]) for rank in found.ranks(case)]
        assert max(errors) <= limit, (case, errors)


def test_the_conditional_branch_alone_equals_its_half_of_both_in_layouts_of_one_size(found: Found) -> None:
    """Bits depend on how many ranks share the sequence, which are all, and not on how they part two branches."""
    digests: dict[tuple[int, str], set[str]] = {}
    for case in found.cases:
        name, dtype = case.split()
        for rank in found.ranks(case):
            if rank["one_branch"]:
                assert max(rank["one_branch_errors"]) <= (SUMMATION_ERROR if dtype == "fp32" else 1e-2), case
                digests.setdefault((ParallelLayout.parse(name).num_ranks, dtype), set()).add(rank["one_branch"])
    assert len(digests) > 2 and all(len(same) == 1 for same in digests.values()), digests


@pytest.mark.parametrize("world", WORLDS)
def test_published_velocities_come_out_on_every_rank(world: int, found: Found) -> None:
    for rank in found.worlds[world]:
        assert max(rank["golden"]) < 1e-5


def test_digests_do_not_depend_on_the_expert_layout(found: Found) -> None:
    """Nor on the rank, nor on whether the model ran before."""
    digests: dict[tuple[int, int, str], set[str]] = {}
    for case in found.cases:
        name, dtype = case.split()
        layout = ParallelLayout.parse(name)
        for rank in found.ranks(case):
            digests.setdefault((layout.cp, layout.cfg, dtype), set()).update(rank["digests"])
    assert all(len(same) == 1 for same in digests.values()), digests


def test_bytes_on_the_wire_are_those_of_the_formula(found: Found) -> None:
    for case in found.cases:
        for rank in found.ranks(case):
            assert rank["sent_bytes"] == rank["formula_bytes"], case


def test_lengths_differ_by_one_token_at_most(found: Found) -> None:
    for case in (case for case in found.cases if "cfg2" not in case):
        counts = found.ranks(case)[0]["token_counts"]
        assert sum(counts) == 209 and max(counts) - min(counts) == 1, case


def test_every_rank_holds_an_equal_share_of_the_experts(found: Found) -> None:
    """12 heads on 8 ranks: one and a half each, nothing padded, nobody idle."""
    whole, eighth = found.ranks("sp2.ep1 bf16"), found.ranks("sp8.ep8 bf16")
    expert_bytes = 2 * 3 * 12 * 8 * 32 * 64 * 2  # two layers of three matrices for 12 x 8 experts
    gates = 2 * 12 * 8 * (32 + 2) * 4  # fp32 rows of the router: a rank has those of two heads
    assert {rank["held_bytes"] for rank in eighth} == {
        whole[0]["held_bytes"] - expert_bytes * 7 // 8 - gates * 10 // 12
    }


def test_loading_takes_little_more_than_the_rank_keeps(found: Found) -> None:
    for rank in found.worlds[2]:
        assert rank["memory"]["held"] > 20 << 20
        assert rank["memory"]["peak"] < 1.2 * rank["memory"]["held"]


def test_time_spent_waiting_is_known(found: Found) -> None:
    assert all(rank["exposed_s"] > 0 for rank in found.ranks("sp8.ep8 bf16"))


def test_exchanges_are_laid_out_as_published(found: Found) -> None:
    for rank in found.worlds[4]:
        assert rank["published_layout"] == dict.fromkeys(("queries", "keys", "home", "experts", "results"), True)
