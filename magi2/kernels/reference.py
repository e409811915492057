"""What each kernel computes, in plain torch: written for reading, computed in the dtype of the argument `dtype`."""

# Shapes: N tokens, M heads, E experts per head, K routes per token and head, D head dim, F expert width, n streams

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def swiglu7(gate: Tensor, up: Tensor) -> Tensor:
    """`g * sigmoid(1.702 g) * (u + 1)` with clamped inputs."""
    g, u = gate.clamp(max=7), up.clamp(-7, 7)
    return g * torch.sigmoid(1.702 * g) * (u + 1)


def route(
    x: Tensor, gate: Tensor, bias: Tensor, top_k: int, normalise: bool, scale: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Ids and weights [M, N, K] for `x` [N, M, D]; among equals the lower id wins."""
    heads = x.shape[1]
    scores = torch.einsum("nmd,med->mne", x.to(dtype), gate.to(dtype).view(heads, -1, x.shape[2])).sigmoid()
    order = (scores + bias.to(dtype).view(heads, 1, -1)).sort(dim=-1, descending=True, stable=True).indices
    ids = order[..., :top_k]
    weights = scores.gather(-1, ids)
    if normalise:
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-12)
    return ids, weights * scale


def experts(
    x: Tensor, ids: Tensor, weights: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, dtype: torch.dtype
) -> Tensor:
    """Weighted sum [N, M, D] of each token's experts, one expert after the other, without intermediate rounding."""
    num_experts = w_gate.shape[0] // x.shape[1]
    out = torch.zeros(x.shape, dtype=dtype, device=x.device)
    for row in range(w_gate.shape[0]):
        head, expert = divmod(row, num_experts)
        token, rank = torch.nonzero(ids[head] == expert, as_tuple=True)
        tokens = x[token, head].to(dtype)
        hidden = swiglu7(tokens @ w_gate[row].to(dtype), tokens @ w_up[row].to(dtype))
        scaled = hidden @ w_down[row].to(dtype) * weights[head, token, rank].to(dtype).unsqueeze(1)
        out[:, head].index_add_(0, token, scaled)
    return out


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 values of `x` [..., K] and the fp32 scale of each row: its largest magnitude / 448."""
    scales = x.float().abs().amax(-1).clamp(min=2.0**-100) / 448
    return (x.float() * (1 / scales).unsqueeze(-1)).to(torch.float8_e4m3fn), scales


def fp8_experts(
    x: tuple[Tensor, Tensor],
    ids: Tensor,
    weights: Tensor,
    parts: Sequence[tuple[Tensor, Tensor]],
    dtype: torch.dtype,
) -> Tensor:
    """`experts` of e4m3 tokens and weights with their scales: gate, up and down, output axis before input axis.

    Hidden rows are rounded to e4m3 when they have been multiplied by 8.
    """
    (tokens, scales), ((gate, gate_scales), (up, up_scales), (down, down_scales)) = x, parts
    num_experts = gate.shape[0] // tokens.shape[1]
    out = torch.zeros(tokens.shape, dtype=dtype, device=tokens.device)
    for row in range(gate.shape[0]):
        head, expert = divmod(row, num_experts)
        token, rank = torch.nonzero(ids[head] == expert, as_tuple=True)
        values, scale = tokens[token, head].to(dtype), scales[token, head].to(dtype).unsqueeze(1)
        left = values @ gate[row].to(dtype).t() * scale * gate_scales[row].to(dtype)
        right = values @ up[row].to(dtype).t() * scale * up_scales[row].to(dtype)
        hidden = (swiglu7(left, right).float() * 8).to(torch.float8_e4m3fn)
        made = hidden.to(dtype) @ down[row].to(dtype).t() / 8 * down_scales[row].to(dtype)
        out[:, head].index_add_(0, token, made * weights[head, token, rank].to(dtype).unsqueeze(1))
    return out


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """`x / rms(x) * (1 + weight)` over the last axis."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (1 + weight.to(x.dtype))


def grouped_rms_norm(x: Tensor, weight: Tensor, group_sizes: Sequence[int]) -> Tensor:
    """RMSNorm of rows whose weights [m * dim] depend on their group."""
    blocks = weight.view(-1, x.shape[-1])
    if blocks.shape[0] == 1:
        return rms_norm(x, blocks[0])
    return torch.cat([rms_norm(part, block) for part, block in zip(x.split(list(group_sizes)), blocks, strict=True)])


def coefficients(
    streams: Tensor,
    norm_weight: Tensor,
    phi: Tensor,
    alphas: Sequence[Tensor],
    biases: Sequence[Tensor],
    group_sizes: Sequence[int],
    dtype: torch.dtype,
) -> Tensor:
    """pre, post and res [N, 2n + n*n] of streams [N, n, c]."""
    n, width = streams.shape[1], phi.shape[0]
    logits = grouped_rms_norm(streams.to(dtype).flatten(1), norm_weight, group_sizes) @ phi.to(dtype)
    parts = logits.split([n, n, n * n], dim=1)
    pre, post, res = (
        alpha.to(dtype) * width**-0.5 * part + bias.to(dtype).flatten()
        for alpha, part, bias in zip(alphas, parts, biases, strict=True)
    )
    matrix = torch.exp(res - res.amax(dim=1, keepdim=True)).view(-1, n, n)
    for _ in range(20):
        matrix = matrix / (matrix.sum(1, keepdim=True) + 1e-12)
        matrix = matrix / (matrix.sum(2, keepdim=True) + 1e-12)
    return torch.cat([pre.sigmoid(), 2 * post.sigmoid(), matrix.flatten(1)], dim=1)


def update(streams: Tensor, current: Tensor, branch: Tensor, dtype: torch.dtype) -> Tensor:
    """New streams [N, n, c] from the coefficients [N, 24] and the half layer's output [N, c]."""
    n = streams.shape[1]
    _, post, res = current.to(dtype).split([n, n, n * n], dim=1)
    return res.view(-1, n, n) @ streams.to(dtype) + post.unsqueeze(2) * branch.to(dtype).unsqueeze(1)


def half_input(streams: Tensor, current: Tensor, dtype: torch.dtype) -> Tensor:
    """The half layer's input [N, c] before its norm."""
    return (current[:, : streams.shape[1], None].to(dtype) * streams.to(dtype)).sum(1)


def packed_heads(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    rope: Tensor,
    to_packed: Tensor,
    group_sizes: Sequence[int],
    num_heads: tuple[int, int],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised and rotated queries and keys, and values, in packed order."""
    heads = qkv.to(dtype).view(qkv.shape[0], num_heads[0] + 2 * num_heads[1], -1)
    q, k, v = heads.split([num_heads[0], num_heads[1], num_heads[1]], dim=1)
    half = rope.shape[1] // 2
    sine, cosine = rope.to(dtype).unsqueeze(1).split(half, dim=2)

    def rotate(x: Tensor) -> Tensor:
        first, second, rest = x.split([half, half, x.shape[2] - 2 * half], dim=2)
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine, rest], dim=2)

    q, k = (rotate(grouped_rms_norm(x, w, group_sizes)) for x, w in ((q, q_weight), (k, k_weight)))
    return q[to_packed], k[to_packed], v[to_packed]


def gate_heads(out: Tensor, gate_logits: Tensor, to_grouped: Tensor, dtype: torch.dtype) -> Tensor:
    """Attention output times a sigmoid per head, in grouped order: [N, H * d]."""
    return (out[to_grouped].to(dtype) * gate_logits.to(dtype).sigmoid().unsqueeze(2)).flatten(1)


def fold_sink(out: Tensor, log_sums: Tensor, sinks: Tensor, dtype: torch.dtype) -> Tensor:
    """Attention output [N, H, d] with one more logit in each head's softmax."""
    total = torch.logaddexp(log_sums.to(dtype), sinks.to(dtype).unsqueeze(1))
    return out.to(dtype) * torch.exp(log_sums.to(dtype) - total).t().unsqueeze(2)
