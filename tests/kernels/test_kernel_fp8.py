"""FP8 experts and the passes that end in e4m3, against plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from magi2.kernels import experts, fp8_experts, fp8_rows, mhc, reference, rows, sorting
from magi2.kernels.fp8_experts import FP8_EXPERT_SETTINGS, ExpertWeights, Fp8ExpertSettings, Scaled
from magi2.kernels.limits import UnsupportedShapesError
from magi2.kernels.settings import Features, features
from tests.kernels.kernel_checks import error, random, random_ids, round_e4m3_exactly

SMALLEST = FP8_EXPERT_SETTINGS[-1]
HEADS, EXPERTS, TOP_K, DIM = 2, 4, 3, 32


@pytest.fixture
def device(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    round_e4m3_exactly(monkeypatch)
    if not features(device).fp8:
        pytest.skip("needs FP8 products")
    return device


def bits(x: Tensor) -> Tensor:
    return x.view(torch.uint8)


def random_experts(device: torch.device, count: int, dim: int, width: int) -> ExpertWeights:
    shapes = ((width, dim), (width, dim), (dim, width))
    parts = (random(device, count, *shape, seed=i, scale=shape[1] ** -0.5) for i, shape in enumerate(shapes))
    return ExpertWeights(*(Scaled(*reference.quantise(part)) for part in parts))


def run(
    x: Tensor, ids: Tensor, weights: Tensor, parts: ExpertWeights, settings: Fp8ExpertSettings, available: Features
) -> Tensor:
    plan = sorting.sort_routes(ids, parts.gate.values.shape[0] // x.shape[1], settings.block_rows)
    buffer = x.new_full((ids.numel(), x.shape[2]), torch.nan)
    tokens = Scaled(*fp8_rows.quantise_rows(x))
    fp8_experts.fp8_expert_rows(tokens, weights, plan, parts, available, settings, buffer)
    return experts.combine(buffer, plan, torch.full_like(x, torch.nan))


@pytest.mark.parametrize("descriptors", [False, True])
def test_fp8_experts_equal_the_plain_loop(descriptors: bool, device: torch.device) -> None:
    if descriptors and device.type != "cpu" and not features(device).descriptors:
        pytest.skip("no descriptors here")
    available = Features(features(device).shared_bytes, descriptors, 3, fp8=True)
    parts = random_experts(device, HEADS * EXPERTS, DIM, 2 * SMALLEST.block_width)
    for tokens in (1, SMALLEST.block_rows + 1):
        x = random(device, tokens, HEADS, DIM, seed=7, scale=3)
        ids = random_ids(device, HEADS, tokens, TOP_K, EXPERTS)
        ids[1] = torch.tensor([3, 0, 2])  # of the second head a full tile and a row each, and nothing for the others
        weights = random(device, HEADS, tokens, TOP_K, seed=8).abs()
        found = run(x, ids, weights, parts, SMALLEST, available)
        wanted = reference.fp8_experts(reference.quantise(x), ids, weights, parts, torch.float64)
        # A hidden value next to the middle of two e4m3 values may go either way.
        assert error(found, wanted) < 2e-3
        assert torch.equal(found, run(x, ids, weights, parts, SMALLEST, available))


def test_fp8_experts_at_hand_give_the_bits_of_their_part(device: torch.device) -> None:
    """Three heads dealt to two holders, one and a half each: the halves of the middle head add up to the whole."""
    heads, num_experts, tokens = 3, 4, 33
    parts = random_experts(device, heads * num_experts, DIM, SMALLEST.block_width)
    x = random(device, tokens, heads, DIM, seed=7, scale=3)
    ids, weights = random_ids(device, heads, tokens, 2, num_experts), random(device, heads, tokens, 2, seed=8).abs()
    available = Features(features(device).shared_bytes, False, 3, fp8=True)
    whole = run(x, ids, weights, parts, SMALLEST, available)
    results = []
    for own, held, span in ((slice(0, 2), slice(0, 6), (0, 6)), (slice(1, 3), slice(6, 12), (2, 8))):
        plan = sorting.sort_routes(ids[own].contiguous(), num_experts, SMALLEST.block_rows, *span)
        buffer = x.new_full((plan.order.numel(), DIM), torch.nan)
        here = ExpertWeights(*(Scaled(part.values[held], part.scales[held]) for part in parts))
        mine = Scaled(*fp8_rows.quantise_rows(x[:, own]))
        fp8_experts.fp8_expert_rows(mine, weights[own].contiguous(), plan, here, available, SMALLEST, buffer)
        results.append(experts.combine(buffer, plan, torch.full_like(x[:, own], torch.nan)))
    first, second = results
    assert torch.equal(first[:, 0], whole[:, 0]) and torch.equal(second[:, 1], whole[:, 2])
    assert torch.equal(first[:, 1] + second[:, 0], whole[:, 1])


def test_the_specialised_fp8_kernel_gives_the_same_bits(device: torch.device) -> None:
    found = features(device)
    if not found.warpgroups:
        pytest.skip("needs warpgroup products")
    heads, num_experts, dim, width = 2, 8, 256, 192
    parts = random_experts(device, heads * num_experts, dim, width)
    assert FP8_EXPERT_SETTINGS[0].specialised
    for tokens, same in ((1, False), (77, False), (1500, False), (1400, True)):
        x = random(device, tokens, heads, dim, seed=7, scale=3).bfloat16()
        x[0] = torch.nan if tokens == 77 else 1.0
        ids = random_ids(device, heads, tokens, TOP_K, num_experts)
        if same:
            ids = (ids * 0 + torch.tensor([6, 0, 3], dtype=torch.int32, device=device)).contiguous()
        weights = random(device, heads, tokens, TOP_K, seed=8).abs()
        settings = (FP8_EXPERT_SETTINGS[1], *FP8_EXPERT_SETTINGS[:1] * 3)
        plain, *others = (run(x, ids, weights, parts, choice, found) for choice in settings)
        for other in others:
            torch.testing.assert_close(other, plain, rtol=0, atol=0, equal_nan=True)


def test_rows_are_quantised_as_the_reference_does(device: torch.device) -> None:
    """Also rows of zeros and of tiny values, and parts of a wider matrix."""
    wide = random(device, 9, 3 * 24, scale=5).bfloat16()
    wide[1], wide[2] = 0, 1e-36
    for x in (wide, wide.view(9, 3, 24), random(device, 9, 100)[:, 10:58].view(9, 2, 24)):
        values, scales = fp8_rows.quantise_rows(x)
        wanted, wanted_scales = reference.quantise(x)
        assert torch.equal(scales, wanted_scales)
        assert torch.equal(bits(values), bits(wanted))


def test_a_nan_spoils_its_own_value_alone(device: torch.device) -> None:
    x = random(device, 3, 16)
    x[1, 2] = torch.nan
    values, _ = fp8_rows.quantise_rows(x)
    assert torch.equal(values.float().isnan().nonzero().cpu(), torch.tensor([[1, 2]]))


def test_swiglu_in_e4m3_is_swiglu_times_eight(device: torch.device) -> None:
    x = random(device, 9, 200, scale=5).bfloat16()
    hidden = rows.swiglu7_rows(x[:, 40:], x.new_empty(9, 80))
    found = fp8_rows.swiglu7_e4m3(x[:, 40:])
    assert torch.equal(bits(found), bits((hidden.float() * 8).to(torch.float8_e4m3fn)))


def empty(device: torch.device, *shape: int) -> tuple[Tensor, Tensor]:
    return torch.empty(shape, dtype=torch.float8_e4m3fn, device=device), torch.empty(shape[0], device=device)


def same_rows(found: tuple[Tensor, Tensor], rounded: Tensor) -> None:
    values, scales = reference.quantise(rounded)
    assert torch.equal(found[1], scales)
    assert torch.equal(bits(found[0]), bits(values))


def test_a_half_layers_input_is_quantised_as_it_is_written(device: torch.device) -> None:
    streams, current = random(device, 5, 4, 48, scale=3).bfloat16(), random(device, 5, 24, seed=1).bfloat16()
    made = empty(device, 5, 48)
    for weight in (None, random(device, 3 * 48, seed=2)):
        y = mhc.half_input(streams, current, weight, (3, 0, 2), made)
        assert torch.equal(y, mhc.half_input(streams, current, weight, (3, 0, 2)))
        same_rows(made, y)


def test_gated_heads_are_quantised_as_they_are_written(device: torch.device) -> None:
    out, logits = random(device, 11, 3, 16).bfloat16(), random(device, 11, 3, seed=1).bfloat16()
    sink = random(device, 11, 3, seed=3, scale=4).t(), random(device, 3, seed=4, scale=4)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(2)).to(device)
    scales = torch.empty(11, device=device)
    gated = rows.gate_heads(out, logits, order, sink, scales)
    same_rows((gated, scales), rows.gate_heads(out, logits, order, sink))


@pytest.mark.parametrize("heads", [1, 3, 12])
def test_combined_rows_are_quantised_by_token(heads: int, device: torch.device) -> None:
    tokens, num_experts = 5, 4
    ids = random_ids(device, heads, tokens, 2, num_experts)
    plan = sorting.sort_routes(ids, num_experts, 16)
    routed = random(device, ids.numel(), 16, seed=3).bfloat16()
    summed = experts.combine(routed, plan, routed.new_empty(tokens, heads, 16))
    values, scales = empty(device, tokens, heads, 16)
    assert experts.combine(routed, plan, values, scales) is values
    same_rows((values.flatten(1), scales), summed.flatten(1))


def test_three_sums_are_rounded_twice(device: torch.device) -> None:
    first, second, third = (random(device, 7, 900, seed=i).half() for i in range(3))
    wanted = first + (second + third)
    assert torch.equal(fp8_rows.sum_rows_(first, second, third), wanted)


def test_a_device_without_fp8_is_refused_by_name(device: torch.device) -> None:
    old = Features(163 * 1024, False, 108)
    parts = random_experts(device, EXPERTS, DIM, SMALLEST.block_width)
    with pytest.raises(UnsupportedShapesError, match=r"^kernel fp8_expert_rows: .*compute capability 8\.9"):
        fp8_experts.fp8_expert_rows(Scaled(torch.zeros(2, 1, DIM), None), None, None, parts, old, SMALLEST, None)
