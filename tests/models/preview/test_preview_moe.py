"""Routing, expert products and the MLP modules."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from magi2.models.preview.layout import ClipLayout
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.moe import Routes, route, run_experts, sort_routes, takes_grouped
from tests.models.preview.preview_goldens import DTYPES, load_golden, relative_l2


def assert_same_routes(routes: Routes, expert_ids: Tensor, weights: Tensor) -> None:
    """Equal as sets per head and token, each expert with its weight."""
    for got, want in ((routes.expert_ids, expert_ids), (routes.weights, weights)):
        got_order, want_order = routes.expert_ids.argsort(-1), expert_ids.argsort(-1)
        torch.testing.assert_close(got.gather(-1, got_order), want.gather(-1, want_order), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("top_k", [2, 6])
def test_routes_equal_the_published_ones(top_k: int, device: torch.device) -> None:
    stored = load_golden("router", device)
    arguments = stored["x"], stored["gate"]
    ids = stored[f"k{top_k}.indices"]
    routes = route(*arguments, stored["expert_bias"], top_k, True, 4.9)
    assert_same_routes(routes, ids, stored[f"k{top_k}.probs_scaled"])
    normalised = route(*arguments, stored["expert_bias"], top_k, True, 1.0)
    assert_same_routes(normalised, ids, stored[f"k{top_k}.probs_normalised"])
    plain = route(*arguments, stored["expert_bias"], top_k, False, 1.0)
    assert_same_routes(plain, ids, stored[f"k{top_k}.probs_no_norm"])


def test_bias_changes_the_selection_only(device: torch.device) -> None:
    stored = load_golden("router", device)
    unbiased = route(stored["x"], stored["gate"], torch.zeros_like(stored["expert_bias"]), 2, False, 1.0)
    assert torch.equal(unbiased.expert_ids.sort(-1).values, stored["k2.indices_no_bias"].sort(-1).values)
    biased = route(stored["x"], stored["gate"], stored["expert_bias"], 2, False, 1.0)
    scores = torch.sigmoid(stored["logits"]).gather(-1, biased.expert_ids)
    torch.testing.assert_close(biased.weights, scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("top_k", [2, 6])
def test_sorted_routes_equal_the_published_order(top_k: int, device: torch.device) -> None:
    stored = load_golden("router", device)
    ids, weights = stored[f"k{top_k}.indices"], stored[f"k{top_k}.probs_scaled"]
    sorted_routes = sort_routes(ids, 16)
    token_ids = sorted_routes.order // top_k % ids.shape[1]
    assert torch.equal(token_ids.int(), stored[f"k{top_k}.sorted_token_ids"])
    assert torch.equal(weights.flatten()[sorted_routes.order], stored[f"k{top_k}.sorted_probs"])
    assert torch.equal(sorted_routes.offsets.long(), stored[f"k{top_k}.expert_offsets"])
    flat = torch.arange(ids.numel(), device=device)
    assert torch.equal(sorted_routes.order[sorted_routes.position.flatten()], flat)


@pytest.mark.parametrize("dtype", DTYPES)
def test_experts_equal_the_published_values(dtype: str, device: torch.device) -> None:
    stored = load_golden("moe_core", device)
    experts = [stored[name].to(DTYPES[dtype]) for name in ("W_gate", "W_up", "W_down")]
    routes = route(stored["x"], stored["gate"], stored["expert_bias"], 4, True, 4.9)
    assert_same_routes(routes, stored["topk_indices"], stored["topk_probs"])
    y = run_experts(stored["x"].to(DTYPES[dtype]), routes, *experts)
    assert y.dtype == DTYPES[dtype]
    assert relative_l2(y, stored[f"y_{dtype}"]) < (1e-5 if dtype == "fp32" else 1e-2)


def test_experts_without_tokens_are_allowed(device: torch.device) -> None:
    """All tokens choose experts 1 and 2 of 4; the others have no row."""
    x = torch.randn(7, 2, 8, device=device)
    w_gate, w_up, w_down = torch.randn(3, 8, 8, 8, device=device).unbind()
    ids = torch.tensor([2, 1], device=device).expand(2, 7, 2)
    weights = torch.rand(2, 7, 2, device=device)
    expected = torch.zeros_like(x)
    for head in range(2):
        for rank in range(2):
            alone = Routes(ids[head : head + 1, :, rank : rank + 1], weights[head : head + 1, :, rank : rank + 1])
            rows = slice(head * 4, head * 4 + 4)
            expected[:, head] += run_experts(x[:, head : head + 1], alone, w_gate[rows], w_up[rows], w_down[rows])[:, 0]
    actual = run_experts(x, Routes(ids, weights), w_gate, w_up, w_down)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sparse_mlp_equals_the_published_values(
    dtype: str, tiny_models: dict[str, PreviewModel], i2v_layout: ClipLayout, device: torch.device
) -> None:
    stored, module = load_golden("moe_layer", device), tiny_models[dtype].block.layers[1].mlp
    sizes, to_packed = i2v_layout.group_sizes, i2v_layout.to_packed
    tolerance = 2e-5 if dtype == "fp32" else 2e-2
    x = stored["x"].to(DTYPES[dtype])[i2v_layout.to_grouped]
    y = module.pre_norm(x, sizes)
    heads = module.split_linear(y, sizes)
    core, moe = heads.view(len(y), 2, -1), module.moe_mlp
    routes = route(core, moe.gate, moe.router(), 3, True, 4.9)
    expected_ids = stored[f"{dtype}.topk_indices"].sort(-1).values
    same = (routes.expert_ids[:, to_packed].sort(-1).values == expected_ids).all(-1).all(0)
    assert same.float().mean() > 0.98
    for name, value in (
        ("moe_input", heads),
        ("moe_core_out", moe(core).flatten(1)),
        ("shared_out", module.shared(y, sizes) + module.specific(y, sizes)),
        ("y", module(x, sizes)),
    ):
        expected = stored[f"{dtype}.{name}"]
        assert relative_l2(value[to_packed][same], expected[same]) < tolerance, name


@pytest.mark.parametrize("dtype", DTYPES)
def test_dense_mlp_equals_the_published_values(
    dtype: str, tiny_models: dict[str, PreviewModel], i2v_layout: ClipLayout, device: torch.device
) -> None:
    stored, module = load_golden("dense_mm_mlp", device), tiny_models[dtype].block.layers[0].mlp
    x = stored["x"].to(DTYPES[dtype])[i2v_layout.to_grouped]
    y = module(x, i2v_layout.group_sizes)[i2v_layout.to_packed]
    assert relative_l2(y, stored[f"{dtype}.y"]) < (2e-5 if dtype == "fp32" else 1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("dim", "width"), [(16, 24), (16, 20), (20, 16), (6, 16), (32, 21)])
def test_grouped_products_are_asked_for_sizes_that_torch_takes(dim: int, width: int, dtype: torch.dtype) -> None:
    rows, ends = torch.ones(8, dim, dtype=dtype), torch.tensor([3, 8], dtype=torch.int32)
    hidden = torch.ones(8, width, dtype=dtype)
    there, back = torch.ones(2, dim, width, dtype=dtype), torch.ones(2, width, dim, dtype=dtype)
    if takes_grouped(dim, width, dtype.itemsize):
        assert bool((torch.nn.functional.grouped_mm(rows, there, offs=ends) == dim).all())
        assert bool((torch.nn.functional.grouped_mm(hidden, back, offs=ends) == width).all())
    else:
        with pytest.raises(RuntimeError, match="16 bytes"):
            torch.nn.functional.grouped_mm(rows, there, offs=ends)
