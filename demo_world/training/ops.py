"""What takes the place of the model's heavy steps in training: the same results, in forms that learn fast.

All clips of a batch have rows of fixed lengths (see `rows`), so attention is one product per kind of clip. Experts are
dense: every token meets every expert, and those that were not chosen count zero.
"""

# Shapes: N tokens in grouped order, H heads, d head dim, b clips of a kind, L rows of one such clip
# M MoE heads, E experts per head, K routes, D head dim of the experts, F expert width

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from demo_world.training.rows import ClipRows
from magi2.errors import ContractError
from magi2.models.layers import swiglu7_pair
from magi2.models.preview.attention import Sequences, split_qkv
from magi2.models.preview.expert_share import ExpertShare
from magi2.models.preview.mhc import mhc_coefficients
from magi2.models.preview.moe import Routes, choose_routes
from magi2.models.preview.ops import PreviewOps

TRAINING_SINKHORN_ITERATIONS = 6
"""Mixes within 1e-3 of what the full number gives."""
EXTRA_CHANNELS = 8
"""Flash kernels want head dims in multiples of 8. Queries hold ones there; keys hold logits to be added."""
SINK_PLANES = 3
"""Numbers of bf16 whose sum holds all bits of a fp32 logit."""
HIDDEN_LOGIT = -1e5


def training_ops(*, sinkhorn_iterations: int = TRAINING_SINKHORN_ITERATIONS) -> PreviewOps:
    """The table of operations for layouts of `batches.lay_out`, whose packed order is the grouped one."""
    return PreviewOps(
        mhc_coefficients=partial(mhc_coefficients, iterations=sinkhorn_iterations),
        packed_heads=grouped_heads,
        attend=attend_clips,
        gate_heads=gate_grouped_heads,
        route=route,
        run_experts=run_all_experts,
    )


def grouped_heads(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    rope: Tensor,
    to_packed: Tensor,
    group_sizes: tuple[int, ...],
    num_heads: tuple[int, int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values in grouped order."""
    return split_qkv(qkv, q_weight, k_weight, rope, group_sizes, num_heads)


def gate_grouped_heads(out: Tensor, gate_logits: Tensor, to_grouped: Tensor) -> Tensor:
    """Attention output [N, H, d] times its gates [N, H], both in grouped order: [N, H * d]."""
    return (out.float() * torch.sigmoid(gate_logits.float()).unsqueeze(-1)).to(out.dtype).flatten(1)


def attend_clips(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, sequences: Sequences, softcap: float) -> Tensor:
    """Attention within each clip, blind to text rows that hold no token: [N, H, d] in grouped order.

    Raises: ContractError for soft-capped scores, or rows that were not laid out for training.
    """
    if softcap > 0 or not isinstance(sequences, ClipRows):
        raise ContractError(f"training attends without soft cap over ClipRows, not {softcap} over {type(sequences)}")
    shared = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
    sink_H = torch.logsumexp(sinks.float(), dim=0)
    q_clips, k_clips, v_clips = (sequences.by_clip(heads) for heads in (q, k, v))
    kinds = zip(q_clips, k_clips, v_clips, sequences.visible(), strict=True)
    return sequences.grouped([_attend(*kind, sink_H) for kind in kinds])


def _attend(q: Tensor, k: Tensor, v: Tensor, is_seen: Tensor, sink_H: Tensor) -> Tensor:
    """Attention [b, L, H, d] of one kind of clip, of which `is_seen` [b, L] says what may be looked at.

    Sink and mask are logits in extra channels of the keys, so that stock kernels serve; the sink is one more key.
    """
    clips, _, heads, dim = q.shape
    hidden = torch.where(is_seen, 0.0, HIDDEN_LOGIT).to(q.dtype)[:, :, None, None].expand(-1, -1, heads, 1)
    keys = torch.cat([k, F.pad(hidden, (0, EXTRA_CHANNELS - 1))], dim=-1)
    planes, rest = [], sink_H * dim**0.5
    for _ in range(SINK_PLANES):
        planes.append(rest.to(q.dtype))
        rest = rest - planes[-1].float()
    sink = F.pad(torch.stack(planes, dim=-1), (dim, EXTRA_CHANNELS - SINK_PLANES)).expand(clips, 1, -1, -1)
    out = F.scaled_dot_product_attention(
        F.pad(q, (0, EXTRA_CHANNELS), value=1.0).transpose(1, 2),
        torch.cat([keys, sink], dim=1).transpose(1, 2),
        F.pad(v, (0, EXTRA_CHANNELS, 0, 0, 0, 1)).transpose(1, 2),
        scale=dim**-0.5,
    )
    return out.transpose(1, 2)[..., :dim]


def route(x: Tensor, gate: Tensor, bias: Tensor, top_k: int, normalise: bool, scale: float) -> Routes:
    """The experts of `x` [N, M, D] and their weights, as `magi2.models.preview.moe.route` chooses them."""
    num_heads = x.shape[1]
    logits_MNE = torch.bmm(x.float().transpose(0, 1), gate.view(num_heads, -1, x.shape[2]).transpose(1, 2))
    return choose_routes(torch.sigmoid(logits_MNE), bias, top_k, normalise, scale)


def run_all_experts(
    x: Tensor, routes: Routes, w_gate: Tensor, w_up: Tensor, w_down: Tensor, share: ExpertShare
) -> Tensor:
    """Weighted sum [N, M, D] of each token's experts, from products with all of them at once."""
    tokens, heads, dim = x.shape
    shape_MNE = (heads, tokens, share.num_experts)
    weights_MNE = torch.zeros(shape_MNE, device=x.device).scatter(2, routes.expert_ids, routes.weights)
    x_MND = x.transpose(0, 1)
    gate, up = (_side_by_side(weight, heads) for weight in (w_gate, w_up))
    hidden = swiglu7_pair(torch.bmm(x_MND, gate), torch.bmm(x_MND, up)).view(*shape_MNE, -1)
    weighted = (hidden.float() * weights_MNE[..., None]).to(x.dtype).flatten(2)
    return torch.bmm(weighted, w_down.view(heads, -1, dim)).transpose(0, 1)


def _side_by_side(weight: Tensor, heads: int) -> Tensor:
    """Matrices [M * E, D, F] of all experts as one per head: [M, D, E * F]."""
    rows, dim, width = weight.shape
    return weight.view(heads, rows // heads, dim, width).transpose(1, 2).reshape(heads, dim, -1)
