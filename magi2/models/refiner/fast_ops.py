"""The refiner's steps by Triton kernels."""

# Shapes: S tokens, K keys, H query heads, G key-value heads, d head size, n query blocks of a group, m key blocks

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor

from magi2.kernels import limits, refiner_attention, rows
from magi2.kernels.proof import window_features
from magi2.kernels.settings import Features, features
from magi2.models.refiner.attention import attend_tail
from magi2.models.refiner.config import RefinerConfig
from magi2.models.refiner.model import RefinerModel
from magi2.models.refiner.ops import RefinerOps
from magi2.models.refiner.windows import WindowGrid


def use_fast_ops(model: RefinerModel) -> None:
    """Let `model` compute with kernels; for inference only.

    Steps whose kernels do not take the model's shapes stay plain, with one warning that names them all.
    """
    config = model.config
    refusals = step_refusals(config, model.compute_dtype, features(model.device))
    limits.log_refusals("refiner", refusals)
    if "attend" not in refusals:  # asked now, so that no step waits for the answer
        window_features(config.num_heads, config.num_query_groups, config.head_dim, model.compute_dtype, model.device)
    model.use_ops(fast_ops(refusals))


def step_refusals(config: RefinerConfig, dtype: torch.dtype, available: Features) -> dict[str, str]:
    """The entries of `RefinerOps` whose kernels do not take the shapes of `config` in `dtype`, with the reason.

    On many ranks each has all heads, so that the shapes are the same.
    """
    heads, groups, dim = config.num_heads, config.num_query_groups, config.head_dim
    refusals = {
        "norm": rows.rms_norm_rows_refusal(config.hidden_size),
        "add_norm": rows.rms_norm_rows_refusal(config.hidden_size),
        "write_heads": rows.heads_refusal(heads, groups, dim, 6 * (dim // 8)),
        "gate_heads": rows.gate_heads_refusal(heads, dim),
        "swiglu7": rows.swiglu7_rows_refusal(config.intermediate_size),
        "attend": limits.first(
            refiner_attention.window_attention_refusal(heads, groups, dim, dtype, available),
            refiner_attention.make_plan_refusal(math.prod(config.window_block)),
        ),
    }
    return {step: refusal for step, refusal in refusals.items() if refusal}


def fast_ops(plain: Collection[str] = ()) -> RefinerOps:
    """The table of kernels, in which the entries named in `plain` are plain torch; `plan` goes with `attend`."""
    stock, names = RefinerOps(), {*plain, *(["plan"] if "attend" in plain else [])}
    return replace(_kernels(), **{name: getattr(stock, name) for name in names})


def _kernels() -> RefinerOps:
    return RefinerOps(
        norm=rows.rms_norm_rows,
        add_norm=rows.add_norm_rows,
        write_heads=rows.write_heads,
        gate_heads=lambda out_SHd, gate_SH: rows.gate_heads(out_SHd, gate_SH, None),
        swiglu7=lambda x: rows.swiglu7_rows(x, x.new_empty(x.shape[0], x.shape[1] // 2)),
        plan=window_plan,
        attend=attend,
    )


def window_plan(grid: WindowGrid, tail: int) -> refiner_attention.WindowPlan:
    """Which keys each query block of `grid` sees, followed by all of the `tail` tokens."""
    device, tile = grid.order.device, refiner_attention.TILE
    first = torch.arange(0, tail, tile, device=device)
    tail_count = (tail - first).clamp(max=tile)
    groups = []
    for group in grid.groups:
        tail_first = (grid.num_key_tokens + first).expand(len(group.query_blocks), -1)
        key_count = torch.bincount(group.key_slots, minlength=group.key_starts.shape[1])
        groups.append(
            (
                group.query_tokens[:, 0],
                group.query_tokens.shape[1],
                torch.cat([group.key_starts, tail_first], dim=1),
                torch.cat([key_count, tail_count]),
            )
        )
    return refiner_attention.make_plan(groups, device)


def attend(q_SHd: Tensor, k_KGd: Tensor, v_KGd: Tensor, grid: WindowGrid, plan: refiner_attention.WindowPlan) -> Tensor:
    """Windowed attention [S, H, d] of the grid's video queries and of the tail's, if they are there."""
    available = window_features(q_SHd.shape[1], k_KGd.shape[1], q_SHd.shape[2], q_SHd.dtype, q_SHd.device)
    out_SHd = refiner_attention.window_attention(q_SHd, k_KGd, v_KGd, plan, available)
    out_SHd[grid.num_tokens :] = attend_tail(q_SHd, k_KGd, v_KGd, grid)
    return out_SHd
