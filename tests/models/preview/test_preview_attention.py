"""Attention with sinks, and the whole attention module."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from magi2.models.preview import attention as attention_functions
from magi2.models.preview.attention import Sequences, attend, gate_heads, split_qkv
from magi2.models.preview.layout import ClipLayout
from magi2.models.preview.model import PreviewModel
from tests.models.preview.preview_goldens import DTYPES, load_golden, relative_l2


def sequences_of(cu_seqlens: Tensor) -> Sequences:
    return Sequences(tuple(cu_seqlens.tolist()), cu_seqlens)


@pytest.mark.parametrize("softcap", [-1.0, 5.0], ids=["softcapoff", "softcap5"])
@pytest.mark.parametrize("sinks", ["sinks1", "sinks2"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sink_attention_equals_the_published_values(
    dtype: str, sinks: str, softcap: float, device: torch.device
) -> None:
    stored = load_golden("attention_sink", device)
    q, k, v = (stored[name].to(DTYPES[dtype]) for name in "qkv")
    out = attend(q, k, v, stored[sinks], sequences_of(stored["cu_seqlens"]), softcap)
    expected = stored[f"out_{sinks}_{'softcap5' if softcap > 0 else 'softcapoff'}_{dtype}"]
    assert out.dtype == DTYPES[dtype]
    assert relative_l2(out, expected) < (1e-5 if dtype == "fp32" else 1e-2)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-5 if dtype == "fp32" else 2e-2)


def test_very_negative_sink_is_no_sink(device: torch.device) -> None:
    stored = load_golden("attention_sink", device)
    sinks = torch.full((1, 4), -1e4, device=device)
    out = attend(stored["q"], stored["k"], stored["v"], sinks, sequences_of(stored["cu_seqlens"]), 0.0)
    assert relative_l2(out, stored["out_nosink_bf16"]) < 1e-2


def test_sink_logit_keeps_more_bits_than_bf16(device: torch.device) -> None:
    """Rounded to bf16 after scaling, this logit would be off by 0.01 and the weight by 1 percent."""
    q, k, v = torch.zeros(3, 8, 1, 16, device=device, dtype=torch.bfloat16).unbind()
    sequences = sequences_of(torch.tensor([0, 8], dtype=torch.int32))
    sink = torch.tensor([[5.02]], device=device)
    out = attend(q, k, v + 1, sink, sequences, 0.0).float()
    torch.testing.assert_close(out, (8 / (8 + sink.exp())).expand(8, 16).view(8, 1, 16), rtol=4e-3, atol=0)


def test_key_heads_are_shared_by_neighbouring_query_heads(device: torch.device) -> None:
    stored = load_golden("attention_sink", device)
    q, sequences = stored["q"].float(), sequences_of(stored["cu_seqlens"])
    k, v = stored["k"].float()[:, :2], stored["v"].float()[:, :2]
    repeated = [tensor[:, [0, 0, 1, 1]] for tensor in (k, v)]
    expected = attend(q, *repeated, stored["sinks1"], sequences, 0.0)
    assert torch.equal(attend(q, k, v, stored["sinks1"], sequences, 0.0), expected)


def test_capped_scores_do_not_depend_on_the_chunk(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = load_golden("attention_sink", device)
    q, k, v = (stored[name].float() for name in "qkv")
    arguments = q, k, v, stored["sinks1"], sequences_of(stored["cu_seqlens"]), 5.0
    whole = attend(*arguments)
    monkeypatch.setattr(attention_functions, "_SCORE_BYTES", 4 * 4 * 37 * 5)
    torch.testing.assert_close(attend(*arguments), whole, rtol=1e-6, atol=1e-6)


def test_gradients_are_those_of_the_plain_softmax(device: torch.device) -> None:
    stored = load_golden("attention_sink", device)
    start, stop = stored["cu_seqlens"][:2].tolist()
    leaves = [stored[name][start:stop].float().requires_grad_() for name in "qkv"]
    leaves.append(stored["sinks2"].clone().requires_grad_())
    q, k, v, sinks = leaves
    sequences = sequences_of(stored["cu_seqlens"][:2])
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    columns = sinks.t().unsqueeze(1).expand(-1, scores.shape[1], -1)
    weights = torch.cat([scores, columns], dim=-1).softmax(-1)[..., : scores.shape[-1]]
    expected = torch.autograd.grad(torch.einsum("hqk,khd->qhd", weights, v).square().sum(), leaves)
    actual = torch.autograd.grad(attend(q, k, v, sinks, sequences, 0.0).square().sum(), leaves)
    for got, want in zip(actual, expected, strict=True):
        assert relative_l2(got, want) < 1e-4


@pytest.mark.parametrize("layer", [0, 1], ids=["three_weight_sets", "one_weight_set"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_module_equals_the_published_values(
    dtype: str, layer: int, tiny_models: dict[str, PreviewModel], i2v_layout: ClipLayout, device: torch.device
) -> None:
    stored, module = load_golden("attention_layer", device), tiny_models[dtype].block.layers[layer].attention
    y = module(stored["x"].to(DTYPES[dtype])[i2v_layout.to_grouped], i2v_layout)[i2v_layout.to_packed]
    assert relative_l2(y, stored[f"layer{layer}.{dtype}.y"]) < (2e-5 if dtype == "fp32" else 1e-2)


def test_queries_and_keys_are_normalised_then_rotated(
    tiny_models: dict[str, PreviewModel], i2v_layout: ClipLayout, device: torch.device
) -> None:
    stored, module = load_golden("attention_layer", device), tiny_models["fp32"].block.layers[0].attention
    sizes = i2v_layout.group_sizes
    y = module.pre_norm(stored["x"].float()[i2v_layout.to_grouped], sizes)
    norms = module.q_norm.weight, module.k_norm.weight
    q, k, _ = split_qkv(module.linear_qkv(y, sizes), *norms, i2v_layout.rope, sizes, module.num_heads)
    assert torch.equal(i2v_layout.rope[i2v_layout.to_packed], stored["rope"])
    assert relative_l2(q[i2v_layout.to_packed], stored["layer0.fp32.q_rope"]) < 2e-5
    assert relative_l2(k[i2v_layout.to_packed], stored["layer0.fp32.k_rope"]) < 2e-5
    gates = module.linear_g(y, sizes)[i2v_layout.to_packed]
    assert relative_l2(gates, stored["layer0.fp32.gate_logits"]) < 2e-5


def test_gate_is_one_sigmoid_per_head_in_grouped_order(device: torch.device) -> None:
    out = torch.randn(6, 2, 4, device=device)
    order = torch.tensor([3, 1, 5, 0, 2, 4], device=device)
    logits = torch.randn(6, 2, device=device)
    gated = gate_heads(out, logits, order).view(6, 2, 4)
    torch.testing.assert_close(gated[0], out[3] * logits[0].sigmoid().unsqueeze(-1))
