"""Memory of one rank by arithmetic."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from magi2.errors import ConfigError
from magi2.models.preview.config import PreviewConfig, Weights
from magi2.models.preview.footprint import check_footprint
from magi2.models.preview.parallelize import ParallelPreview
from magi2.parallel.collectives import Group
from magi2.parallel.layout import ParallelLayout
from magi2.parallel.memory import Footprint
from magi2.parallel.mesh import Mesh
from tests.models.preview.preview_goldens import tiny_config

CARD = 80 << 30
TOKENS = {"video": 57_344, "audio": 250, "text": 7_000}  # 540p with the longest prompts


def mesh(layout: ParallelLayout) -> Mesh:
    """The first rank's, without processes: enough to build a model on no device."""
    groups = [Group(tuple(range(size)), 0) for size in (layout.num_ranks, layout.cp, layout.ep)]
    return Mesh(layout, 0, torch.device("cpu"), *groups)


@pytest.mark.parametrize("weights", ["bf16", "fp8_experts", "fp8"])
@pytest.mark.parametrize("text", ["sp4.ep4", "sp4.ep2", "sp2.cfg2.ep4", "sp4.ep1"])
def test_weights_are_those_that_the_rank_will_hold(text: str, weights: Weights) -> None:
    layout = ParallelLayout.parse(text)
    with torch.device("meta"):
        model = ParallelPreview(tiny_config(), mesh(layout), weights=weights)
    held = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    assert check_footprint(tiny_config(), layout, {"video": 100}, card_bytes=CARD, weights=weights).weights == held


def test_weights_in_fp8_are_half_of_those_in_bf16() -> None:
    one, formats = ParallelLayout.parse("sp1"), ("bf16", "fp8_experts", "fp8")
    sizes = [check_footprint(PreviewConfig(), one, {}, card_bytes=1 << 40, weights=each).weights for each in formats]
    assert [round(size / 2**30) for size in sizes] == [212, 112, 108]


def test_published_model_fits_eight_cards_of_80_gib_without_padding() -> None:
    """The published layout holds 47 GB of weights a rank with eight expert ranks, two of which idle."""
    eight = check_footprint(PreviewConfig(), ParallelLayout.parse("sp8.ep8"), TOKENS, card_bytes=CARD)
    four = check_footprint(PreviewConfig(), ParallelLayout.parse("sp8.ep4"), TOKENS, card_bytes=CARD)
    assert 37e9 < eight.weights < 38e9 and 64e9 < four.weights < 66e9
    assert eight.total < four.total < CARD


@pytest.mark.parametrize(
    ("text", "nearest"), [("sp8.ep2", "sp8.cfg1.ep4, sp8.cfg1.ep8"), ("sp2", "sp4.cfg1.ep4, sp2.cfg2.ep4")]
)
def test_layouts_that_do_not_fit_are_refused_with_the_nearest(text: str, nearest: str) -> None:
    said = rf"needs 1\d\d\.\d GiB a rank \(weights 111\.1.* for 57344 video .*80\.0 GiB.*work: {nearest}\)"
    with pytest.raises(ConfigError, match=said):
        check_footprint(PreviewConfig(), ParallelLayout.parse(text), TOKENS, card_bytes=CARD)


def test_heads_are_checked_before_memory() -> None:
    with pytest.raises(ConfigError, match="do not divide by cp 5"):
        check_footprint(PreviewConfig(), ParallelLayout.parse("sp5"), TOKENS, card_bytes=CARD)


def test_more_ranks_need_less_each() -> None:
    sizes = [
        check_footprint(PreviewConfig(), ParallelLayout.parse(text), TOKENS, card_bytes=1 << 40)
        for text in ("sp1", "sp2", "sp4", "sp8")
    ]
    assert all(small.total < large.total for large, small in pairwise(sizes))


def test_one_branch_needs_less_but_for_the_exchange_that_two_parted_branches_do_without() -> None:
    def need(text: str, *branches: int) -> Footprint:
        return check_footprint(
            PreviewConfig(), ParallelLayout.parse(text), TOKENS, card_bytes=1 << 40, branches=branches
        )

    assert need("sp4.ep4", 1).total < need("sp4.ep4", 2).total == need("sp4.ep4", 2, 1).total
    both, one = need("sp1.cfg2.ep1", 2), need("sp1.cfg2.ep1", 1)
    assert both.buffers == 0 < one.buffers and one.activations < both.activations
    with pytest.raises(ConfigError, match="divide by cp 48, in steps without guidance"):
        need("sp24.cfg2.ep8", 2, 1)
