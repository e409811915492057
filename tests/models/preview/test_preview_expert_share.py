"""Dealing half heads to ranks, and sums that do not depend on who got which."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from magi2.errors import ConfigError
from magi2.models.preview import moe
from magi2.models.preview.expert_share import ExpertShare, expert_share, whole_heads
from magi2.models.preview.tiles import TILE_ROWS, even_scores, tile_rows, tiled_product

HEADS, EXPERTS, TOP_K, DIM, WIDTH = 3, 8, 3, 16, 32


def shares(size: int, heads: int = 12, experts: int = 256) -> list[ExpertShare]:
    return [expert_share(heads, experts, rank=rank, size=size) for rank in range(size)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 8, 12, 24])
def test_shares_are_equal_and_cover_every_expert_once(size: int) -> None:
    rows = [row for share in shares(size) for row in share.expert_rows]
    assert rows == list(range(12 * 256))
    assert {share.num_held for share in shares(size)} == {12 * 256 // size}
    assert len({len(share.heads) for share in shares(size)}) == 1


def test_eight_ranks_hold_one_and_a_half_of_twelve_heads_each() -> None:
    first, second = shares(8)[:2]
    assert list(first.heads) == [0, 1] and first.held_ids(0) == (0, 256) and first.held_ids(1) == (0, 128)
    assert list(second.heads) == [1, 2] and second.held_ids(0) == (128, 256) and second.held_ids(1) == (0, 256)
    assert second.router_rows == range(256, 768) and second.expert_rows == range(384, 768)


@pytest.mark.parametrize(("heads", "experts", "size"), [(12, 256, 5), (12, 256, 16), (12, 255, 8)])
def test_what_cannot_be_dealt_is_refused(heads: int, experts: int, size: int) -> None:
    with pytest.raises(ConfigError, match=f"{heads} MoE heads of {experts} experts.*{size} ranks"):
        expert_share(heads, experts, rank=0, size=size)


def test_odd_experts_may_stay_whole() -> None:
    assert [share.expert_rows for share in shares(2, heads=2, experts=5)] == [range(5), range(5, 10)]


def problem(device: torch.device, dtype: torch.dtype, tokens: int = 90) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(tokens, HEADS, DIM, generator=generator).to(device, dtype)
    gate = torch.randn(HEADS * EXPERTS, DIM, generator=generator).to(device)
    bias = torch.randn(HEADS * EXPERTS, generator=generator).mul(0.1).to(device)
    shapes = (DIM, WIDTH), (DIM, WIDTH), (WIDTH, DIM)
    weights = [torch.randn(HEADS * EXPERTS, *shape, generator=generator).to(device, dtype) for shape in shapes]
    return x, gate, bias, weights


@pytest.mark.parametrize("size", [2, 3, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_partial_sums_add_up_to_the_bits_of_one_rank(dtype: torch.dtype, size: int, device: torch.device) -> None:
    if device.type != "cpu" and dtype == torch.float32:
        pytest.skip("grouped products in fp32 have no kernel there")
    x, gate, bias, weights = problem(device, dtype)
    whole = moe.run_experts(x, moe.route(x, gate, bias, TOP_K, True, 4.9), *weights)
    halves: dict[int, list[Tensor]] = {}
    for share in shares(size, HEADS, EXPERTS):
        held, router = list(share.expert_rows), list(share.router_rows)
        own = x[:, list(share.heads)]
        routes = moe.route(own, gate[router], bias[router], TOP_K, True, 4.9)
        partial = moe.run_experts(own, routes, *(part[held] for part in weights), share)
        for place, head in enumerate(share.heads):
            halves.setdefault(head, []).append(partial[:, place])
    for head, parts in halves.items():
        assert torch.equal(sum(parts[1:], parts[0]), whole[:, head]), head


def test_a_token_gets_the_same_bits_in_any_company(device: torch.device) -> None:
    if device.type != "cpu":
        pytest.skip("tiles are for the CPU")
    x, gate, bias, weights = problem(device, torch.float32, tokens=200)
    whole = moe.run_experts(x, moe.route(x, gate, bias, TOP_K, True, 4.9), *weights)
    generator = torch.Generator().manual_seed(2)
    for count in (1, 2, 3, 7, 33, 150):
        chosen = torch.randperm(200, generator=generator)[:count]
        routes = moe.route(x[chosen], gate, bias, TOP_K, True, 4.9)
        assert torch.equal(moe.run_experts(x[chosen], routes, *weights), whole[chosen]), count


def test_tiles_hold_rows_of_one_expert_each() -> None:
    ends = torch.tensor([0, 5, 5, 5 + TILE_ROWS, 80], dtype=torch.int32)
    tiles = tile_rows(ends, 90)
    rows = torch.randn(90, 4)
    weights = torch.randn(5, 4, 3)
    out = tiled_product(rows[tiles.row], weights, tiles)
    owner = torch.searchsorted(ends, torch.arange(80), right=True)
    places = tiles.shift[owner] + torch.arange(80)
    assert len(set(places.tolist())) == 80 and int(places.max()) < len(out)
    torch.testing.assert_close(out[places], torch.einsum("ri,rio->ro", rows[:80], weights[owner]))


def test_scores_are_sigmoids_of_products() -> None:
    x, matrices = torch.randn(2, 45, 8), torch.randn(2, 8, 5)
    torch.testing.assert_close(even_scores(x, matrices), torch.sigmoid(x @ matrices))


def test_whole_heads_are_the_share_of_one_rank() -> None:
    assert whole_heads(12, 256) == expert_share(12, 256, rank=0, size=1)
