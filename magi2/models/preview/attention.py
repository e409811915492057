"""Attention of the preview transformer as functions: head split, norm and rotation, block-diagonal softmax, gate.

Source: MAGI-2 preview inference code.
"""

# Shapes: N tokens, H query heads, G key/value heads, d head dim, B rotary bands, Q queries, S keys of one sequence

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from magi2.models.layers import apply_rope
from magi2.models.preview.grouped import grouped_rms_norm

_SINK_PLANES = 3
_SINK_CHANNELS = 8  # the planes, filled up because flash kernels want head dims in multiples of 8
_SCORE_BYTES = 1 << 28  # of fp32 scores per chunk of queries, where scores have to be explicit


@dataclass(frozen=True, eq=False)
class Sequences:
    """Ends of the independent attention sequences: host integers, and the same as `cu_seqlens` int32 on the device."""

    bounds: tuple[int, ...]
    cu_seqlens: Tensor

    @property
    def max_length(self) -> int:
        """Tokens of the longest sequence."""
        return max(stop - start for start, stop in pairwise(self.bounds))


def sequences(bounds: tuple[int, ...], device: torch.device) -> Sequences:
    """Sequences that end at `bounds`, the first of which is 0."""
    return Sequences(bounds, torch.tensor(bounds, dtype=torch.int32, device=device))


def split_qkv(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    rope: Tensor,
    group_sizes: tuple[int, ...],
    num_heads: tuple[int, int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [N, H, d], keys and values [N, G, d] from `qkv` [N, (H + 2G) * d]; everything in grouped order.

    `num_heads` is (H, G). Queries and keys are normalised per head with the weights [m * d] of the token's modality
    and rotated by `rope` [N, 6B], in fp32 with one rounding to the dtype of `qkv`.
    """
    query_heads, kv_heads = num_heads
    heads = qkv.view(qkv.shape[0], query_heads + 2 * kv_heads, -1)
    q, k, v = torch.split(heads, [query_heads, kv_heads, kv_heads], dim=1)
    q = apply_rope(grouped_rms_norm(q, q_weight, group_sizes, out_dtype=torch.float32), rope)
    k = apply_rope(grouped_rms_norm(k, k_weight, group_sizes, out_dtype=torch.float32), rope)
    return q.to(qkv.dtype), k.to(qkv.dtype), v


def packed_heads(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    rope: Tensor,
    to_packed: Tensor,
    group_sizes: tuple[int, ...],
    num_heads: tuple[int, int],
) -> tuple[Tensor, Tensor, Tensor]:
    """The heads of `split_qkv` in packed order; `to_packed` [N] says which grouped row each packed one is."""
    q, k, v = split_qkv(qkv, q_weight, k_weight, rope, group_sizes, num_heads)
    return q[to_packed], k[to_packed], v[to_packed]


def head_blocks(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    rope: Tensor,
    to_packed: Tensor,
    group_sizes: tuple[int, ...],
    num_heads: tuple[int, int],
    out: Tensor,
) -> None:
    """The heads of `packed_heads`, written to `out` [P, N, (H + 2G) / P, d]: block p has the p-th part of each kind."""
    heads = packed_heads(qkv, q_weight, k_weight, rope, to_packed, group_sizes, num_heads)
    torch.cat([kind.view(len(kind), len(out), -1, kind.shape[2]).transpose(0, 1) for kind in heads], dim=2, out=out)


def attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, sequences: Sequences, softcap: float) -> Tensor:
    """Non-causal attention within each sequence, with sinks: [N, H, d] in the dtype of `q`. All in packed order.

    `k` and `v` [N, G, d] serve H / G neighbouring query heads each. Every head's softmax has one more term for each
    row of `sinks` [s, H] fp32, an unscaled logit without a value. `softcap` > 0 bounds the scaled scores (not the
    sinks) by `softcap * tanh(score / softcap)`; 0 or less is off.
    """
    shared = q.shape[1] // k.shape[1]
    if shared > 1:
        k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
    sink = torch.logsumexp(sinks.float(), dim=0)
    outputs = []
    for start, stop in pairwise(sequences.bounds):
        q_HSd, k_HSd, v_HSd = (tensor[start:stop].transpose(0, 1) for tensor in (q, k, v))
        if softcap > 0:
            out_HSd = _attend_capped(q_HSd, k_HSd, v_HSd, sink, softcap)
        else:
            out_HSd = _attend_stock(q_HSd, k_HSd, v_HSd, sink)
        outputs.append(out_HSd.transpose(0, 1))
    return torch.cat(outputs)


def gate_heads(out: Tensor, gate_logits: Tensor, to_grouped: Tensor) -> Tensor:
    """Attention output [N, H, d] in packed order, times one sigmoid gate per head: [N, H * d] in grouped order.

    The output may also come in blocks of heads, [P, N, H / P, d]. `gate_logits` [N, H] are in grouped order. fp32 with
    one rounding to the dtype of `out`.
    """
    if out.dim() == 4:
        out = out.transpose(0, 1).flatten(1, 2)
    gated = out[to_grouped].float() * torch.sigmoid(gate_logits.float()).unsqueeze(-1)
    return gated.to(out.dtype).flatten(1)


def _attend_stock(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:
    """Attention [H, Q, d] by torch's own kernels, with the sink as one more key whose value is zero.

    Those kernels take no logit per head without a mask. So the logit is a product of extra channels instead: ones
    in every query, zeros in every key, and in the sink key the logit as a sum of numbers of the kernel's dtype,
    three of which hold all bits of a fp32 value.
    """
    dim = q.shape[-1]
    planes, rest = [], sink * dim**0.5
    for _ in range(_SINK_PLANES):
        planes.append(rest.to(q.dtype))
        rest = rest - planes[-1].float()
    sink_key = F.pad(torch.stack(planes, dim=-1), (dim, _SINK_CHANNELS - _SINK_PLANES)).unsqueeze(1)
    queries = F.pad(q, (0, _SINK_CHANNELS), value=1.0)
    keys = torch.cat([F.pad(k, (0, _SINK_CHANNELS)), sink_key], dim=1)
    values = F.pad(v, (0, _SINK_CHANNELS, 0, 1))
    out = F.scaled_dot_product_attention(queries[None], keys[None], values[None], scale=dim**-0.5)
    return out[0, ..., :dim]


def _attend_capped(q: Tensor, k: Tensor, v: Tensor, sink: Tensor, softcap: float) -> Tensor:
    """Attention [H, Q, d] with soft-capped scores, which no stock kernel offers; a chunk of queries at a time."""
    num_heads, num_keys, dim = k.shape
    chunk = max(1, _SCORE_BYTES // (4 * num_heads * num_keys))
    keys, values = k.float().transpose(1, 2), v.float()
    outputs = []
    for queries in torch.split(q.float(), chunk, dim=1):
        scores = softcap * torch.tanh(queries @ keys * (dim**-0.5 / softcap))
        column = sink.view(-1, 1, 1).expand(-1, scores.shape[1], 1)
        weights = torch.cat([scores, column], dim=-1).softmax(dim=-1)
        outputs.append(weights[..., :-1] @ values)
    return torch.cat(outputs, dim=1).to(q.dtype)
