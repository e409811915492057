"""Router, sort, experts and combine against plain torch over odd sizes and routings."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from magi2.kernels import experts, reference, routing, sorting
from magi2.kernels.settings import EXPERT_SETTINGS, ExpertSettings, Features, features
from tests.kernels.kernel_checks import TOLERANCE, error, random, random_ids


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("tokens", "heads", "num_experts", "top_k"), [(1, 1, 8, 3), (37, 2, 8, 3), (130, 1, 80, 6)])
def test_router_picks_the_same_experts(
    tokens: int, heads: int, num_experts: int, top_k: int, dtype: torch.dtype, device: torch.device
) -> None:
    x = random(device, tokens, heads, 32, seed=1).to(dtype)
    gate = random(device, heads * num_experts, 32, seed=2, scale=0.3)
    bias = random(device, heads * num_experts, seed=3, scale=0.1)
    ids, weights = routing.route(x, routing.planes(gate, dtype), bias, top_k, True, 4.9)
    expected_ids, expected = reference.route(x, gate, bias, top_k, True, 4.9, torch.float64)
    assert torch.equal(ids.long(), expected_ids)
    torch.testing.assert_close(weights.double(), expected, rtol=1e-5, atol=1e-6)
    _, raw = routing.route(x, routing.planes(gate, dtype), bias, top_k, False, 1.0)
    torch.testing.assert_close(raw.double(), reference.route(x, gate, bias, top_k, False, 1.0, torch.float64)[1])


def test_router_breaks_ties_towards_the_lower_id(device: torch.device) -> None:
    x = torch.zeros(5, 1, 16, device=device)
    ids, _ = routing.route(x, routing.planes(torch.zeros(40, 16, device=device), x.dtype), x.new_zeros(40), 6, True, 1)
    assert torch.equal(ids.cpu(), torch.arange(6, dtype=torch.int32).expand(1, 5, 6))


def test_router_keeps_ids_in_range_for_nan(device: torch.device) -> None:
    x = torch.full((3, 1, 16), torch.nan, device=device)
    ids, _ = routing.route(x, routing.planes(torch.zeros(8, 16, device=device), x.dtype), x.new_zeros(8), 3, True, 1)
    assert int(ids.min()) >= 0
    assert int(ids.max()) < 8


@pytest.mark.parametrize(
    ("routing_kind", "tokens"),
    [*(("random", tokens) for tokens in (1, 31, 32, 75)), ("one_expert_set", 75), ("empty_head_ends", 33)],
)
def test_sort_is_the_stable_sort(routing_kind: str, tokens: int, device: torch.device) -> None:
    heads, num_experts, top_k, tile = 2, 8, 3, 16
    ids = random_ids(device, heads, tokens, top_k, num_experts)
    if routing_kind == "one_expert_set":
        ids = torch.tensor([5, 2, 7], dtype=torch.int32, device=device).expand(heads, tokens, top_k).contiguous()
    elif routing_kind == "empty_head_ends":
        ids = ids % 4 + 2
    plan = sorting.sort_routes(ids, num_experts, tile)
    keys = (ids + torch.arange(heads, device=device, dtype=torch.int32).view(-1, 1, 1) * num_experts).flatten()
    ranked, order = keys.sort(stable=True)
    assert torch.equal(plan.order.long(), order)
    assert torch.equal(plan.order[plan.position.flatten().long()].cpu(), torch.arange(keys.numel(), dtype=torch.int32))
    bounds = torch.arange(heads * num_experts + 1, device=device, dtype=torch.int32)
    assert torch.equal(plan.offsets, torch.searchsorted(ranked, bounds, out_int32=True))
    count = int(plan.num_tiles)
    covered = []
    for expert, first, end in zip(*(part[:count].tolist() for part in plan[3:6]), strict=True):
        assert 0 < end - first <= tile
        assert bool((ranked[first:end] == expert).all())
        covered += range(first, end)
    assert covered == list(range(keys.numel()))


def run_experts(
    x: Tensor, ids: Tensor, weights: Tensor, parts: list[Tensor], settings: ExpertSettings, available: Features
) -> Tensor:
    w_gate, w_up, w_down = parts
    plan = sorting.sort_routes(ids, w_gate.shape[0] // x.shape[1], settings.block_rows)
    rows = x.new_full((ids.numel(), x.shape[2]), torch.nan)
    gate_up = experts.lay_out(w_gate, w_up, settings)
    experts.expert_rows(x, weights, plan, gate_up, w_down, available, settings, rows)
    return experts.combine(rows, plan, torch.full_like(x, torch.nan))


WAYS = list(product(TOLERANCE, EXPERT_SETTINGS[3:], (False, True)))
# The interpreter knows no stages, and takes larger blocks by the same steps: there they are tried once.
INTERPRETED = [*product(TOLERANCE, EXPERT_SETTINGS[5:], (False, True)), (torch.float16, EXPERT_SETTINGS[4], True)]


@pytest.mark.parametrize(
    ("dtype", "settings", "descriptors"), WAYS if torch.cuda.is_available() else INTERPRETED, ids=str
)
def test_experts_equal_the_plain_loop(
    dtype: torch.dtype, settings: ExpertSettings, descriptors: bool, device: torch.device
) -> None:
    if descriptors and device.type != "cpu" and not features(device).descriptors:
        pytest.skip("no descriptors here")
    heads, num_experts, top_k, dim, width = 2, 4, 3, 16, 2 * settings.block_width
    available = Features(features(device).shared_bytes, descriptors, 3)
    parts = [random(device, heads * num_experts, dim, width, seed=i, scale=dim**-0.5).to(dtype) for i in (4, 5)]
    parts.append(random(device, heads * num_experts, width, dim, seed=6, scale=width**-0.5).to(dtype))
    for tokens in (1, settings.block_rows + 1):
        x = random(device, tokens, heads, dim, seed=7, scale=3).to(dtype)
        ids = random_ids(device, heads, tokens, top_k, num_experts)
        ids[1] = torch.tensor([3, 0, 2])  # of the second head a full tile and a row each, and nothing for the others
        weights = random(device, heads, tokens, top_k, seed=8).abs()
        first = run_experts(x, ids, weights, parts, settings, available)
        expected = reference.experts(x, ids, weights, *parts, torch.float64)
        assert error(first, expected) < TOLERANCE[dtype]
        if dtype is torch.float32:
            assert torch.equal(first, run_experts(x, ids, weights, parts, settings, available))


def test_specialised_kernel_gives_the_same_bits(device: torch.device) -> None:
    found = features(device)
    if not found.warpgroups:
        pytest.skip("needs warpgroup products")
    heads, num_experts, top_k, dim, width = 2, 8, 3, 256, 128
    parts = [random(device, heads * num_experts, dim, width, seed=i, scale=dim**-0.5).bfloat16() for i in (4, 5)]
    parts.append(random(device, heads * num_experts, width, dim, seed=6, scale=width**-0.5).bfloat16())
    assert EXPERT_SETTINGS[0].specialised
    for tokens, same in ((1, False), (77, False), (1500, False), (1400, True)):
        x = random(device, tokens, heads, dim, seed=7, scale=3).bfloat16()
        x[0] = torch.nan if tokens == 77 else 1.0
        ids = random_ids(device, heads, tokens, top_k, num_experts)
        if same:
            ids = (ids * 0 + torch.tensor([6, 0, 3], dtype=torch.int32, device=device)).contiguous()
        weights = random(device, heads, tokens, top_k, seed=8).abs()
        plain, *runs = (
            run_experts(x, ids, weights, parts, settings, found)
            for settings in (EXPERT_SETTINGS[1], *EXPERT_SETTINGS[:1] * 3)
        )
        for run in runs:
            torch.testing.assert_close(run, plain, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_experts_at_hand_give_the_bits_of_their_part(dtype: torch.dtype, device: torch.device) -> None:
    """Three heads dealt to two holders, one and a half each: the halves of the middle head add up to the whole."""
    heads, num_experts, top_k, dim, width, tokens = 3, 4, 2, 16, 32, 33
    parts = [random(device, heads * num_experts, dim, width, seed=i, scale=dim**-0.5).to(dtype) for i in (4, 5)]
    parts.append(random(device, heads * num_experts, width, dim, seed=6, scale=width**-0.5).to(dtype))
    x = random(device, tokens, heads, dim, seed=7, scale=3).to(dtype)
    ids = random_ids(device, heads, tokens, top_k, num_experts)
    weights = random(device, heads, tokens, top_k, seed=8).abs()
    settings, available = EXPERT_SETTINGS[5], Features(features(device).shared_bytes, False, 3)
    whole = run_experts(x, ids, weights, parts, settings, available)
    results = []
    for own, held, span in ((slice(0, 2), slice(0, 6), (0, 6)), (slice(1, 3), slice(6, 12), (2, 8))):
        plan = sorting.sort_routes(ids[own].contiguous(), num_experts, settings.block_rows, *span)
        rows = x.new_full((plan.order.numel(), dim), torch.nan)
        gate_up, w_down = experts.lay_out(*(part[held] for part in parts[:2]), settings), parts[2][held]
        experts.expert_rows(x[:, own], weights[own].contiguous(), plan, gate_up, w_down, available, settings, rows)
        results.append(experts.combine(rows, plan, torch.full_like(x[:, own], torch.nan)))
    first, second = results
    assert torch.equal(first[:, 0], whole[:, 0]) and torch.equal(second[:, 1], whole[:, 2])
    assert torch.equal(first[:, 1] + second[:, 0], whole[:, 1])


def test_nan_tokens_stay_nan_and_alone(device: torch.device) -> None:
    x = random(device, 20, 1, 16)
    x[3] = torch.nan
    parts = [random(device, 8, 16, 32, seed=i) for i in (4, 5)] + [random(device, 8, 32, 16, seed=6)]
    ids = random_ids(device, 1, 20, 3, 8)
    weights = torch.ones(1, 20, 3, device=device)
    out = run_experts(x, ids, weights, parts, EXPERT_SETTINGS[4], Features(2**17, False, 2))
    assert torch.equal(out.isnan().any(-1).any(-1).cpu(), torch.arange(20) == 3)


def test_weights_are_stored_as_each_kernel_takes_them(device: torch.device) -> None:
    w_gate, w_up = random(device, 4, 16, 32), random(device, 4, 16, 32, seed=1)
    specialised, plain = EXPERT_SETTINGS[0], EXPERT_SETTINGS[5]
    views = experts.lay_out(w_gate, w_up, plain)
    assert torch.equal(views[0], w_gate)
    assert torch.equal(views[1], w_up)
    found = experts.as_interleaved(*views)
    assert found is not None
    assert torch.equal(found[..., ::2], w_gate) and torch.equal(found[..., 1::2], w_up)
    assert found.untyped_storage().data_ptr() == views[0].untyped_storage().data_ptr()
    assert all(part is view for part, view in zip(experts.lay_out(*views, plain), views, strict=True))
    assert experts.as_interleaved(w_gate, w_up) is None
    assert experts.as_interleaved(views[1], views[0]) is None
    assert experts.lay_out(w_gate, w_up, specialised) == (w_gate, w_up)
    assert all(part.is_contiguous() for part in experts.lay_out(*views, specialised))


@pytest.mark.parametrize("specialised", [False, True])
def test_weights_stored_for_the_other_kernel_are_refused(specialised: bool, device: torch.device) -> None:
    parts = [torch.zeros(2, 256, 64, dtype=torch.float16, device=device) for _ in range(2)]
    settings = EXPERT_SETTINGS[0 if specialised else 5]
    gate_up = experts.lay_out(*parts, EXPERT_SETTINGS[5 if specialised else 0])
    x = torch.zeros(1, 1, 256, dtype=torch.float16, device=device)
    plan = sorting.sort_routes(torch.zeros(1, 1, 1, dtype=torch.int32, device=device), 2, settings.block_rows)
    available, down = Features(2**18, False, 3, warpgroups=True), parts[0].mT.contiguous()
    with pytest.raises(ValueError, match="specialised" if specialised else "plain"):
        experts.expert_rows(x, torch.ones(1, 1, 1, device=device), plan, gate_up, down, available, settings, x[0])
