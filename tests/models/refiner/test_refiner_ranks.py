"""The refiner on 2, 4 and 8 ranks gives what one rank gives, and sends what the formula says.

`make test` runs the small case under layouts of every kind and the large one where a block of the grid has two
neighbours; the rest comes with the marker `faults`.
"""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from magi2.parallel.layout import ParallelLayout
from tests.models.refiner.refiner_on_ranks import CASES, SAMPLED
from tests.rank_launch import SUMMATION_ERROR, launch

pytestmark = pytest.mark.ranks
SIZES = {"forward_t2v": (11, 9, 22), "forward_with_audio": (3, 5, 6)}
LARGE, SMALL = SIZES
LAUNCHES = {
    "chosen": {"sp2": [SMALL], "sp1.cfg2": [SMALL], "sp4": [LARGE, SMALL], "sp2.cfg2": [SMALL], "sp8": [SMALL]},
    "others": {"sp2": [LARGE, SMALL], "sp8": [LARGE, SMALL], "sp4.cfg2": [SMALL]},
}
"""Layouts and their cases; a guidance half does what half the ranks do, so it needs the small one alone."""


MARKS = {"chosen": (), "others": pytest.mark.faults}
EVERY_LAYOUT = [
    pytest.param((launched, name), marks=MARKS[launched], id=f"{launched}-{name}")
    for launched, cases in LAUNCHES.items()
    for name in cases
]
EVERY_CASE = pytest.mark.parametrize(
    ("spread", "case"),
    [
        pytest.param((launched, name), case, marks=MARKS[launched], id=f"{launched}-{name}-{case}")
        for launched, cases in LAUNCHES.items()
        for name in cases
        for case in cases[name]
    ],
    indirect=["spread"],
)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Gives the folder with what the ranks of a launch found."""
    folders = {}

    def of(launched):
        if launched not in folders:
            folders[launched], cases = tmp_path_factory.mktemp("refiner"), LAUNCHES[launched]
            (folders[launched] / CASES).write_text(json.dumps(cases))
            worlds = sorted({ParallelLayout.parse(name).num_ranks for name in cases})
            launch("tests.models.refiner.refiner_on_ranks", worlds, folders[launched])
        return folders[launched]

    return of


@pytest.fixture(params=EVERY_LAYOUT)
def spread(request, found):
    """What every rank said of one layout, and the tensors of the first."""
    launched, name = request.param
    ranks = ParallelLayout.parse(name).num_ranks
    folder = found(launched) / str(ranks)
    facts = [json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in range(ranks)]
    return facts, load_file(folder / f"{name}.safetensors")


@pytest.fixture(scope="module")
@torch.no_grad()
def alone(load_tiny_refiner, load_refiner_golden):
    refiner, results = load_tiny_refiner(torch.float32), {}
    for name, size in SIZES.items():
        given = load_refiner_golden(name)
        context = refiner.prepare(refiner.prepare_grid(size), given["text"], given.get("audio"))
        results[name] = refiner(given["video"], context)
    return results


@EVERY_CASE
def test_every_layout_equals_one_rank_and_the_published_result(
    spread, alone, load_refiner_golden, relative_error, case
):
    got = spread[1][case]
    assert relative_error(got, alone[case]) <= SUMMATION_ERROR
    assert relative_error(got, load_refiner_golden(case)["fp32.out_video"]) <= 1e-5


@pytest.mark.parametrize("spread", [("chosen", SAMPLED)], ids=[SAMPLED], indirect=True)
def test_a_full_run_on_two_guidance_halves_is_the_published_one(spread, load_refiner_golden, relative_error):
    facts, results = spread
    assert relative_error(results["sampling"], load_refiner_golden("sampling_5step")["fp32.final"]) <= 1e-4
    assert len({fact["sampling"]["digest"] for fact in facts}) == 1


@EVERY_CASE
def test_every_rank_has_the_same_bits(spread, case):
    assert len({fact[case]["digest"] for fact in spread[0]}) == 1


def test_a_second_forward_has_the_same_bits(spread):
    assert all(fact["again"] == {"digest": fact["forward_with_audio"]["digest"]} for fact in spread[0])


@EVERY_CASE
def test_each_rank_sends_the_bytes_of_the_formula(spread, tiny_refiner_config, case):
    config, facts = tiny_refiner_config, [fact[case] for fact in spread[0]]
    cp_size = len(facts) if sum(fact["tokens"] for fact in facts) == total_tokens(case) else len(facts) // 2
    heads, groups, d, fp32 = config.num_heads, config.num_query_groups, config.head_dim, 4
    tail = sum(fact["tail"] for fact in facts[:cp_size])
    for fact in facts:
        seam = 2 * fact["seam"] * groups * d * fp32
        rows = (cp_size - 1) * fact["tail"] * (heads + 2 * groups) * d * fp32
        parts = (tail - fact["tail"]) * heads * (d + 1) * fp32
        expected = {
            "refiner.seam": config.num_layers * seam,
            "refiner.tail": config.num_layers * (rows + parts),
            "refiner.velocity": (cp_size - 1) * fact["tokens"] * 48 * fp32,
        }
        assert fact["sent_bytes"] == (expected if cp_size > 1 else {})


def total_tokens(case):
    frames, height, width = SIZES[case]
    return frames * height * width
