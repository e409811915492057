"""Which steps of a preview model its kernels do not take, by the shapes that one rank computes."""

from __future__ import annotations

import torch

from magi2.kernels import experts, fp8_experts, fp8_rows, limits, mhc, routing, rows, sorting
from magi2.kernels.settings import Features
from magi2.models.preview.config import BF16, PreviewConfig, Weights
from magi2.models.preview.expert_share import ExpertShare, whole_heads


def step_refusals(
    config: PreviewConfig,
    dtype: torch.dtype,
    available: Features,
    *,
    attention_ranks: int = 1,
    share: ExpertShare | None = None,
    weights: Weights = BF16,
) -> dict[str, str]:
    """The entries of `PreviewOps` whose kernels do not take the shapes of `config` in `dtype`, with the reason.

    `attention_ranks` share the attention heads, and `share` says which experts are here, by default all of them.
    `run_experts`, or `run_quantised_experts` for e4m3 `weights`, stands for its kernels, `attend` for its sinks: the
    library has to be asked on the device.
    """
    refusals = {
        **_streams(config, dtype, available),
        **_heads(config, attention_ranks),
        **_experts(config, dtype, available, share, weights),
    }
    return {step: refusal for step, refusal in refusals.items() if refusal}


def _streams(config: PreviewConfig, dtype: torch.dtype, available: Features) -> dict[str, str | None]:
    moe, count, size = config.moe_config, config.mhc_config.num_stream, config.hidden_size
    # A sparse layer makes the hidden rows of two experts at once.
    sparse_width = moe.shared_expert_intermediate_size + moe.modality_specific_expert_intermediate_size
    return {
        "mhc_coefficients": mhc.coefficients_refusal(count, size, dtype, available),
        "mhc_input": mhc.half_input_refusal(count, size),
        "mhc_post": mhc.update_refusal(count),
        "swiglu7": rows.swiglu7_rows_refusal(max(config.intermediate_size, sparse_width)),
    }


def _heads(config: PreviewConfig, ranks: int) -> dict[str, str | None]:
    heads, groups, dim = config.num_heads, config.num_query_groups, config.head_dim
    capped = f"soft cap {config.attn_softcap} is not off" if config.attn_softcap > 0 else None
    return {
        "packed_heads": rows.heads_refusal(heads, groups, dim, 6 * (dim // 8), ranks),
        "attend": limits.first(capped, rows.fold_sink_refusal(heads // ranks, dim)),
        "gate_heads": rows.gate_heads_refusal(heads, dim),
    }


def _experts(
    config: PreviewConfig, dtype: torch.dtype, available: Features, share: ExpertShare | None, weights: Weights
) -> dict[str, str | None]:
    moe = config.moe_config
    if not moe.moe_layers:
        return {}
    share = share or whole_heads(moe.num_heads, moe.num_experts)
    heads, dim, width = len(share.heads), config.split_merge_size // moe.num_heads, moe.expert_intermediate_size
    if weights == BF16:
        step, refusal = "run_experts", experts.expert_rows_refusal(share.num_held, dim, width, dtype, available)
    else:
        step = "run_quantised_experts"
        refusal = limits.first(
            fp8_experts.fp8_expert_rows_refusal(share.num_held, dim, width, available),
            fp8_rows.quantise_rows_refusal(dim),
        )
    return {
        "route": routing.route_refusal(heads, moe.num_experts, dim, moe.top_k, dtype, available),
        step: limits.first(
            sorting.sort_routes_refusal(heads, moe.num_experts, moe.top_k),
            refusal,
            experts.combine_refusal(dim, moe.top_k),
        ),
    }
