"""FP8 weights: their arithmetic, and that bits depend neither on the number of rows nor on who holds which experts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from magi2.models.layers import swiglu7_pair
from magi2.models.preview.expert_share import ExpertShare, expert_share
from magi2.models.preview.moe import Routes, run_experts, run_quantised_experts
from magi2.models.preview.quantised import (
    E4M3,
    E4M3_MAX,
    Quantised,
    QuantisedExperts,
    quantise,
    quantise_hidden,
    quantised_linear,
)

TOKENS, HEADS, EXPERTS, TOP_K, DIM, WIDTH = 37, 3, 8, 2, 16, 32


def dequantise(tensor: Quantised) -> Tensor:
    """The numbers that `tensor` stands for, in fp32."""
    return tensor.values.float() * tensor.scales.unsqueeze(-1)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def draw(generator: torch.Generator, *size: int) -> Tensor:
    return torch.randn(size, generator=generator)


def make_experts(generator: torch.Generator) -> QuantisedExperts:
    rows = HEADS * EXPERTS
    shapes = ((rows, WIDTH, DIM), (rows, WIDTH, DIM), (rows, DIM, WIDTH))
    return QuantisedExperts(*(quantise(draw(generator, *shape) * shape[-1] ** -0.5) for shape in shapes))


def make_routes(generator: torch.Generator) -> Routes:
    scores = torch.rand(HEADS, TOKENS, EXPERTS, generator=generator)
    weights, ids = scores.topk(TOP_K, dim=-1)
    return Routes(ids, weights)


def held(experts: QuantisedExperts, share: ExpertShare) -> QuantisedExperts:
    rows = slice(share.expert_rows.start, share.expert_rows.stop)
    return QuantisedExperts(*(Quantised(part.values[rows], part.scales[rows]) for part in experts))


def test_every_row_has_its_own_scale_and_comes_back_within_a_sixteenth(generator: torch.Generator) -> None:
    x = draw(generator, 5, 7, 64) * torch.tensor([1e-3, 1.0, 50.0, 1e4, 1e-8]).view(5, 1, 1)
    values, scales = quantise(x)
    assert values.dtype == E4M3 and scales.shape == (5, 7)
    torch.testing.assert_close(scales, x.abs().amax(-1) / E4M3_MAX)
    assert values.float().abs().amax(-1).eq(E4M3_MAX).all()
    # three bits behind the point: half of 1/8 of a value, and below the least normal one 2^-10 of a scale
    error = (dequantise(Quantised(values, scales)) - x).abs()
    assert (error <= x.abs() / 16 + scales.unsqueeze(-1) * 2**-10).all()


def test_a_row_of_zeros_stays_zeros() -> None:
    values, scales = quantise(torch.zeros(2, 8))
    assert dequantise(Quantised(values, scales)).eq(0).all() and scales.gt(0).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_shows_in_the_scale(bad: float) -> None:
    x = torch.ones(2, 8)
    x[1, 3] = bad
    assert quantise(x).scales.isfinite().tolist() == [True, False]


def test_the_fixed_scale_holds_everything_that_swiglu7_makes(generator: torch.Generator) -> None:
    gate, up = draw(generator, 64, 64) * 100, draw(generator, 64, 64) * 100
    hidden = swiglu7_pair(gate, up)
    assert hidden.abs().max() > 55
    error = (dequantise(quantise_hidden(hidden)) - hidden).abs()
    assert (error <= hidden.abs() / 16 + 2**-13).all()


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("sets", [1, 3])
def test_a_linear_layer_multiplies_what_its_values_stand_for(
    sets: int, hidden: bool, generator: torch.Generator
) -> None:
    sizes = (20, 0, 17)
    x, weight = draw(generator, sum(sizes), 64).clamp(-7, 7), quantise(draw(generator, sets * 24, 64))
    tokens = dequantise(quantise_hidden(x) if hidden else quantise(x))
    blocks = dequantise(weight).view(sets, 24, 64)
    parts = torch.split(tokens, list(sizes)) if sets > 1 else (tokens,)
    wanted = torch.cat([part @ block.t() for part, block in zip(parts, blocks, strict=True)])
    torch.testing.assert_close(quantised_linear(x, weight, sizes, sets, hidden), wanted)


def test_a_token_does_not_depend_on_how_many_there_are(generator: torch.Generator) -> None:
    x, weight = draw(generator, 70, 48), quantise(draw(generator, 40, 48))
    whole = quantised_linear(x, weight, (70,), 1, False)
    for start, stop in ((0, 1), (5, 38), (33, 70)):
        part = quantised_linear(x[start:stop], weight, (stop - start,), 1, False)
        assert torch.equal(part, whole[start:stop])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_multiply_what_their_values_stand_for(dtype: torch.dtype, generator: torch.Generator) -> None:
    experts, routes, x = make_experts(generator), make_routes(generator), draw(generator, TOKENS, HEADS, DIM).to(dtype)
    matrices = [dequantise(part).transpose(1, 2) for part in experts]
    wanted = run_experts(dequantise(quantise(x)), routes, *matrices)
    found = run_quantised_experts(x, routes, experts).float()
    assert found.sub(wanted).norm() / wanted.norm() < 0.04  # the hidden rows are e4m3 as well
    assert run_quantised_experts(x, routes, experts).dtype == dtype


@pytest.mark.parametrize("size", [2, 3, 6])
def test_bits_do_not_depend_on_who_holds_which_experts(size: int, generator: torch.Generator) -> None:
    experts, routes, x = make_experts(generator), make_routes(generator), draw(generator, TOKENS, HEADS, DIM)
    whole = run_quantised_experts(x, routes, experts)
    total = torch.zeros_like(whole)
    for rank in range(size):
        share = expert_share(HEADS, EXPERTS, rank=rank, size=size)
        heads = slice(share.heads.start, share.heads.stop)
        own = Routes(routes.expert_ids[heads], routes.weights[heads])
        total[:, heads] += run_quantised_experts(x[:, heads], own, held(experts, share), share)
    assert torch.equal(total, whole)


def test_bits_of_experts_do_not_depend_on_other_tokens(generator: torch.Generator) -> None:
    experts, routes, x = make_experts(generator), make_routes(generator), draw(generator, TOKENS, HEADS, DIM)
    whole = run_quantised_experts(x, routes, experts)
    some = Routes(routes.expert_ids[:, 9:20], routes.weights[:, 9:20])
    assert torch.equal(run_quantised_experts(x[9:20], some, experts), whole[9:20])
