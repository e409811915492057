"""Layers with e4m3 weights, with kernels in place of plain torch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from magi2.kernels.settings import Features, features
from magi2.models.preview import fp8_ops
from magi2.models.preview.config import PreviewConfig, Weights
from magi2.models.preview.expert_share import whole_heads
from magi2.models.preview.fast_ops import fast_ops, use_fast_ops
from magi2.models.preview.kernel_fit import step_refusals
from magi2.models.preview.linear import QuantisedLinear
from magi2.models.preview.mlp import MultiHeadMoe
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.quantised import E4M3, Quantised, quantise, quantised_linear
from tests.kernels.kernel_checks import round_e4m3_exactly
from tests.models.preview.preview_goldens import relative_l2, tiny_config

H200 = Features(227 * 1024, descriptors=True, processors=132, warpgroups=True, fp8=True)
A100 = Features(163 * 1024, descriptors=False, processors=108)


def normal(device: torch.device, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


@pytest.mark.parametrize("weights", ["fp8_experts", "fp8"])
def test_kernels_take_the_published_shapes_where_there_is_fp8(weights: Weights) -> None:
    published = PreviewConfig()
    assert not step_refusals(published, torch.bfloat16, H200, weights=weights)
    refused = step_refusals(published, torch.bfloat16, A100, weights=weights)
    assert list(refused) == ["run_quantised_experts"]
    assert "no FP8 products: compute capability 8.9" in refused["run_quantised_experts"]


def test_products_say_what_they_do_not_take() -> None:
    cuda, published = torch.device("cuda"), PreviewConfig()
    refusal = fp8_ops.linear_refusal
    odd = replace(published.moe_config, shared_expert_intermediate_size=1000)
    assert refusal(published, torch.bfloat16, cuda, H200) is None
    assert "compute capability 8.9" in str(refusal(published, torch.bfloat16, cuda, A100))
    assert "float32" in str(refusal(published, torch.float32, cuda, H200))
    assert "shared width 1000" in str(refusal(replace(published, moe_config=odd), torch.bfloat16, cuda, H200))
    assert "cpu has no FP8 product" in str(refusal(published, torch.bfloat16, torch.device("cpu"), H200))


def test_routed_experts_by_kernels_are_the_plain_ones(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    if not features(device).fp8:
        pytest.skip("needs FP8 products")
    round_e4m3_exactly(monkeypatch)
    config = tiny_config()
    with torch.device(device):
        moe = MultiHeadMoe(config, dtype=torch.float32, weights="fp8_experts").requires_grad_(False)
    rows, heads = len(moe.W_gate), config.moe_config.num_heads
    for index, name in enumerate(("W_gate", "W_up", "W_down")):
        weight = moe.get_parameter(name)
        values, scales = quantise(normal(device, *weight.shape, seed=index) * weight.shape[2] ** -0.5)
        weight.copy_(values)
        moe.get_parameter(f"{name}_scale").copy_(scales)
    moe.gate.copy_(normal(device, *moe.gate.shape, seed=4))
    assert rows == heads * config.moe_config.num_experts
    # Rows of a wider matrix, as the split product's are.
    x = normal(device, 9, heads * moe.gate.shape[1] + 8, seed=5)[:, 8:].view(9, heads, -1)
    wanted = moe(x)
    moe.ops = fast_ops(weights="fp8_experts")
    found = moe(x)
    assert relative_l2(found, wanted) < 2e-3
    share = whole_heads(heads, config.moe_config.num_experts)
    routes = moe.ops.route(x, moe.gate, moe.router(), config.moe_config.top_k, True, 1.0)
    again = (moe.ops.run_quantised_experts(x, routes, moe.quantised(), share) for _ in range(2))
    assert torch.equal(*again)


def test_where_no_product_takes_e4m3_all_else_is_fast(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    round_e4m3_exactly(monkeypatch)
    config = tiny_config()
    config = replace(config, num_layers=1, mm_layers=(0,), moe_config=replace(config.moe_config, moe_layers=(0,)))
    model = PreviewModel(config, compute_dtype=torch.float32, weights="fp8").to(device).requires_grad_(False)
    for seed, (name, weight) in enumerate(model.named_parameters()):
        width = weight.shape[-1] if weight.dim() > 1 else 100
        values = normal(device, *weight.shape, seed=seed) * width**-0.5
        weight.copy_(quantise(values).values if weight.dtype == E4M3 else 1 / 448 if "_scale" in name else values)
    mlp, y = model.block.layers[0].mlp, normal(device, 5, config.hidden_size)
    wanted = mlp.from_normed(y, (3, 0, 2))
    use_fast_ops(model)
    assert "quantised_linear" in caplog.text
    assert relative_l2(mlp.from_normed(y, (3, 0, 2)), wanted) < 1e-2


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(33, 0, 6), (33, 1, 40)])  # few rows, and some that begin at no whole 16 bytes
@pytest.mark.parametrize("sets", [1, 3])
@pytest.mark.parametrize("hidden", [False, True])
def test_products_equal_the_plain_ones(sizes: tuple[int, ...], sets: int, hidden: bool, device: torch.device) -> None:
    if device.type != "cuda" or not features(device).fp8:
        pytest.skip("needs FP8 products")
    ops = fast_ops(weights="fp8")
    with torch.device(device):
        linear = QuantisedLinear(64, 48, sets=sets, hidden=hidden).requires_grad_(False)
    values, scales = quantise(normal(device, sets * 48, 64))
    linear.weight.copy_(values)
    linear.weight_scale.copy_(scales)
    x = normal(device, sum(sizes), 128 if hidden else 64, seed=1).bfloat16()
    plain = fast_ops().swiglu7(x) if hidden else x
    wanted = quantised_linear(plain, Quantised(linear.weight, linear.weight_scale), sizes, sets, hidden)
    linear.ops = ops
    found = linear(ops.swiglu7(x) if hidden else x, sizes)
    assert found.dtype == torch.bfloat16
    assert relative_l2(found, wanted) < 4e-3
    assert torch.equal(found, linear(ops.swiglu7(x) if hidden else x, sizes))
