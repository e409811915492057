"""Attention over a part of the keys, and the sum of the parts: what the tail's queries need when keys are spread.

A part gives its output and the logarithm of its softmax's sum; weighted by these, outputs add up to the whole.
"""

# Shapes: T queries, K keys, H query heads, G key-value heads, d head size, P parts, R query rows of one key-value head

from __future__ import annotations

import torch
from torch import Tensor

# Scores of the plain path that exist at one time.
SCORE_ELEMENTS = 2**27


def attend_with_log_sums(q_THd: Tensor, k_KGd: Tensor, v_KGd: Tensor) -> tuple[Tensor, Tensor]:
    """Dense grouped-query attention [T, H, d] in the dtype of q, and log(sum(exp(scores))) [T, H] in fp32.

    Without keys the output is zero and the logarithm minus infinity. On CUDA in 16 bits this is torch's flash kernel,
    elsewhere plain products.
    """
    queries, heads, d = q_THd.shape
    groups = k_KGd.shape[1]
    # The heads of one group become more queries of one head: no copy of keys for each of them.
    q_GRd = q_THd.view(queries, groups, heads // groups, d).permute(1, 0, 2, 3).flatten(1, 2)
    k_GKd, v_GKd = k_KGd.transpose(0, 1), v_KGd.transpose(0, 1)
    if q_THd.device.type == "cuda" and q_THd.dtype.itemsize == 2 and queries and len(k_KGd):
        flash = torch.ops.aten._scaled_dot_product_flash_attention(q_GRd[None], k_GKd[None], v_GKd[None])
        out_GRd, sums_GR = flash[0][0], flash[1][0]
    else:
        out_GRd, sums_GR = _plain(q_GRd, k_GKd.float(), v_GKd)
    shape = (groups, queries, heads // groups)
    out_THd = out_GRd.reshape(*shape, d).permute(1, 0, 2, 3).reshape(queries, heads, d)
    return out_THd, sums_GR.reshape(shape).permute(1, 0, 2).reshape(queries, heads)


def _plain(q_GRd: Tensor, k_GKd: Tensor, v_GKd: Tensor) -> tuple[Tensor, Tensor]:
    groups, rows, d = q_GRd.shape
    step = max(1, SCORE_ELEMENTS // max(1, groups * k_GKd.shape[1]))
    out_GRd, sums_GR = torch.empty_like(q_GRd), torch.empty(groups, rows, device=q_GRd.device)
    for start in range(0, rows, step):
        scores = q_GRd[:, start : start + step].float() @ k_GKd.transpose(1, 2) * d**-0.5
        sums_GR[:, start : start + step] = scores.logsumexp(-1)
        weights = (scores - sums_GR[:, start : start + step, None]).exp()
        out_GRd[:, start : start + step] = weights.to(v_GKd.dtype) @ v_GKd
    return out_GRd, sums_GR


def sum_parts(out_PTHd: Tensor, sums_PTH: Tensor) -> Tensor:
    """Attention [T, H, d] over all keys, from the outputs and log-sums of the parts; added in fp32, in their order."""
    weights_PTH = sums_PTH.softmax(dim=0)
    return (out_PTHd.float() * weights_PTH[..., None]).sum(dim=0).to(out_PTHd.dtype)
