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
        "add_": rows.rms_norm_rows_refusal(config.hidden_size),
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
        add_=rows.add_rows_,
        write_heads=rows.write_heads,
        gate_heads=lambda out_SHd, gate_SH: rows.gate_heads(out_SHd, gate_SH, None),
        swiglu7=lambda x: rows.swiglu7_rows(x, x.new_empty(x.shape[0], x.shape[1] // 2)),
        plan=window_plan,
        attend=attend,
    )


def window_plan(grid: WindowGrid, tail: int) -> refiner_attention.WindowPlan:
    """Which keys each query block of `grid` sees, followed by all of the `tail` tokens, and the tail, which sees all.

    The tail's tiles come first.
    """
    device, tile = grid.order.device, refiner_attention.TILE

    def blocks(first: int, stop: int) -> tuple[Tensor, Tensor]:
        """First rows of the blocks of consecutive keys, and how many each has."""
        firsts = torch.arange(first, stop, tile, device=device)
        return firsts, (stop - firsts).clamp(max=tile)

    num_keys = grid.num_key_tokens + tail
    tail_first, tail_count = blocks(grid.num_key_tokens, num_keys)
    groups = []
    for group in grid.groups:
        key_count = torch.bincount(group.key_slots, minlength=group.key_starts.shape[1])
        groups.append(
            (
                group.query_tokens[:, 0],
                group.query_tokens.shape[1],
                torch.cat([group.key_starts, tail_first.expand(len(group.query_blocks), -1)], dim=1),
                torch.cat([key_count, tail_count]),
            )
        )
    all_first, all_count = blocks(0, num_keys)
    for first in range(0, tail, tile):
        query_first = torch.tensor([grid.num_tokens + first], device=device)
        groups.append((query_first, min(tile, tail - first), all_first[None], all_count))
    return refiner_attention.make_plan(groups, device)


def attend(q_SHd: Tensor, k_KGd: Tensor, v_KGd: Tensor, grid: WindowGrid, plan: refiner_attention.WindowPlan) -> Tensor:
    """Windowed attention [S, H, d] of the grid's video queries and of the tail's, if they are there."""
    available = window_features(q_SHd.shape[1], k_KGd.shape[1], q_SHd.shape[2], q_SHd.dtype, q_SHd.device)
    if len(q_SHd) == grid.num_tokens:
        tail_tiles = math.ceil((len(k_KGd) - grid.num_key_tokens) / refiner_attention.TILE)
        plan = replace(plan, tiles=plan.tiles[tail_tiles:])
    return refiner_attention.window_attention(q_SHd, k_KGd, v_KGd, plan, available)
