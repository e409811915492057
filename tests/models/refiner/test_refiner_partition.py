"""Parts of a grid: every block once, equal costs, short seams, and the attention of the whole."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from magi2.models.refiner.attention import attend, gather_attention
from magi2.models.refiner.config import RefinerConfig
from magi2.models.refiner.parallelize import _linear_keys
from magi2.models.refiner.partial import attend_with_log_sums, sum_parts
from magi2.models.refiner.partition import grid_part, partition_blocks
from magi2.models.refiner.windows import window_grid

BANDS = 10000.0 ** -(torch.arange(4) / 4)
DELIVERY, TEXT = (63, 68, 120), 2000
PUBLISHED = RefinerConfig()


def random_qkv(tokens, heads, groups, dim):
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(tokens, count, dim, generator=generator) for count in (heads, groups, groups))


axis = st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(0, 2))


@settings(max_examples=25, deadline=None)
@given(axes=st.tuples(axis, axis, axis), tail=st.integers(0, 5), ranks=st.integers(1, 9))
def test_parts_attend_to_what_the_whole_attends_to(axes, tail, ranks):
    size, block, radius = zip(*axes, strict=True)
    whole = window_grid(size, block, radius, BANDS)
    q, k, v = random_qkv(whole.num_tokens + tail, 4, 2, 8)
    wanted = gather_attention(q, k, v, whole)[: whole.num_tokens]
    blocks_of = partition_blocks(whole, ranks, 10.0)
    parts = [grid_part(whole, blocks_of, rank) for rank in range(ranks)]
    places = [whole.restore[part.order] for part in parts]  # of a part's tokens in the whole
    outputs = []
    for rank, part in enumerate(parts):
        received = []
        for sender, other in enumerate(parts):
            cuts = [sum(other.send_rows[:rank]), sum(other.send_rows[: rank + 1])]
            received.append(places[sender][other.send[cuts[0] : cuts[1]]])
            assert len(received[-1]) == part.receive_rows[sender] == other.send_rows[rank]
        keys = torch.cat([places[rank], *received, torch.arange(whole.num_tokens, len(k))])
        outputs.append(gather_attention(q[places[rank]], k[keys], v[keys], part))
        assert part.num_key_tokens + tail == len(keys)
        assert torch.equal(part.rope, whole.rope[places[rank]])
    assert parts[0].token_counts == tuple(part.num_tokens for part in parts)
    raster = torch.cat(outputs)[parts[0].restore]
    assert (raster - wanted[whole.restore]).abs().max() < 1e-5


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_parts_of_the_delivery_size_cost_the_same(ranks):
    whole = window_grid(DELIVERY, PUBLISHED.window_block, PUBLISHED.window_radius, BANDS)
    linear = _linear_keys(PUBLISHED)
    blocks_of = partition_blocks(whole, ranks, linear)
    assert torch.equal(torch.cat(blocks_of).sort().values, torch.arange(4080))
    parts = [grid_part(whole, blocks_of, rank) for rank in range(ranks)]
    costs = [sum(g.query_tokens.numel() * (len(g.key_slots) + linear) for g in part.groups) for part in parts]
    assert max(costs) < 1.002 * sum(costs) / ranks


@pytest.mark.parametrize(("ranks", "mean_mb", "most_mb", "by_heads_mb"), [(2, 161, 161, 2642), (8, 243, 291, 1156)])
def test_seams_of_the_delivery_size_take_the_documented_bytes(ranks, mean_mb, most_mb, by_heads_mb):
    whole = window_grid(DELIVERY, PUBLISHED.window_block, PUBLISHED.window_radius, BANDS)
    blocks_of = partition_blocks(whole, ranks, _linear_keys(PUBLISHED))
    parts = [grid_part(whole, blocks_of, rank) for rank in range(ranks)]
    heads, groups, d = PUBLISHED.num_heads, PUBLISHED.num_query_groups, PUBLISHED.head_dim
    own = TEXT // ranks
    tail = (ranks - 1) * own * 2 * d * (heads + 2 * groups) + (TEXT - own) * heads * (2 * d + 4)
    sent = [4 * groups * d * sum(part.send_rows) + tail for part in parts]
    assert sum(sent) / ranks == pytest.approx(mean_mb * 1e6, rel=5e-3)
    assert max(sent) == pytest.approx(most_mb * 1e6, rel=5e-3)
    tokens = whole.num_tokens + TEXT
    by_heads = tokens * (ranks - 1) / ranks**2 * 2 * d * (2 * heads + 2 * groups)
    assert by_heads == pytest.approx(by_heads_mb * 1e6, rel=5e-3)


@pytest.mark.parametrize("splits", [[9], [0, 9], [3, 0, 6], [1] * 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_over_parts_of_the_keys_adds_up(splits, dtype, device, monkeypatch):
    monkeypatch.setattr("magi2.models.refiner.partial.SCORE_ELEMENTS", 40)
    q, k, v = (tensor.to(device, dtype) for tensor in random_qkv(9, 4, 2, 16))
    parts = [attend_with_log_sums(q[:5], *kept) for kept in zip(k.split(splits), v.split(splits), strict=True)]
    total = sum_parts(torch.stack([out for out, _ in parts]), torch.stack([sums for _, sums in parts]))
    assert total.dtype == dtype
    wanted = attend(q[None, :5].double(), k[None].double(), v[None].double())[0]
    assert (total - wanted).norm() / wanted.norm() < (1e-6 if dtype == torch.float32 else 1e-2)
