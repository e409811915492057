"""Hyper-connections: how a half layer reads its input from the residual streams and writes its output back.

Source: MAGI-2 preview inference code, in the form of its GPU kernels (the update of the streams is rounded once).
"""

# Shapes: N tokens in grouped order, n streams, c hidden size, m weight sets (1 or 3)

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from magi2.models.preview.grouped import grouped_rms_norm

SINKHORN_ITERATIONS = 20
_SINKHORN_EPS = 1e-12


class MhcWeights(NamedTuple):
    """The parameters of one half layer, fp32: alphas [1], biases [n], [n] and [n, n], phi [n*c, 2n + n*n]."""

    alpha_pre: Tensor
    alpha_post: Tensor
    alpha_res: Tensor
    bias_pre: Tensor
    bias_post: Tensor
    bias_res: Tensor
    phi: Tensor


class MhcCoefficients(NamedTuple):
    """Per token: weights [N, n] of the streams in the input, [N, n] of the output in the streams, and the mixing
    matrix [N, n, n], target stream before source stream."""

    pre: Tensor
    post: Tensor
    res: Tensor


def mhc_logits(streams: Tensor, norm_weight: Tensor, phi: Tensor, group_sizes: tuple[int, ...]) -> Tensor:
    """Normalised streams [N, n, c] times phi: [N, 2n + n*n] fp32. `norm_weight` is [m * n*c]."""
    return grouped_rms_norm(streams.flatten(1), norm_weight, group_sizes, out_dtype=torch.float32) @ phi


def mhc_coefficients(
    streams: Tensor,
    norm_weight: Tensor,
    weights: MhcWeights,
    group_sizes: tuple[int, ...],
    *,
    iterations: int = SINKHORN_ITERATIONS,
) -> MhcCoefficients:
    """Coefficients of one half layer for streams [N, n, c], computed in fp32 and rounded to the streams' dtype."""
    num_streams = streams.shape[1]
    scale = (num_streams * streams.shape[2]) ** -0.5
    logits = mhc_logits(streams, norm_weight, weights.phi, group_sizes)
    pre, post, res = torch.split(logits, [num_streams, num_streams, num_streams**2], dim=-1)
    pre = torch.sigmoid(weights.alpha_pre * scale * pre + weights.bias_pre)
    post = 2 * torch.sigmoid(weights.alpha_post * scale * post + weights.bias_post)
    res = weights.alpha_res * scale * res.view(-1, num_streams, num_streams) + weights.bias_res
    return MhcCoefficients(pre.to(streams.dtype), post.to(streams.dtype), sinkhorn(res, iterations).to(streams.dtype))


def sinkhorn(logits: Tensor, iterations: int = SINKHORN_ITERATIONS) -> Tensor:
    """Doubly stochastic matrices [N, n, n] from logits: columns are normalised first, rows last."""
    matrix = torch.exp(logits - logits.amax(dim=(-2, -1), keepdim=True))
    for _ in range(iterations):
        matrix = matrix / (matrix.sum(dim=-2, keepdim=True) + _SINKHORN_EPS)
        matrix = matrix / (matrix.sum(dim=-1, keepdim=True) + _SINKHORN_EPS)
    return matrix


def mhc_pre(streams: Tensor, pre: Tensor) -> Tensor:
    """Weighted sum of the streams [N, n, c]: [N, c], fp32 with one rounding."""
    return _mix(pre, streams).to(streams.dtype)


def mhc_input(streams: Tensor, pre: Tensor, norm_weight: Tensor, group_sizes: tuple[int, ...]) -> Tensor:
    """The half layer's normed input [N, c]: `mhc_pre`, then RMSNorm with the group's `norm_weight` [m * c]."""
    return grouped_rms_norm(mhc_pre(streams, pre), norm_weight, group_sizes)


def mhc_post(streams: Tensor, res: Tensor, post: Tensor, branch: Tensor) -> Tensor:
    """Mixed streams plus the half layer's output `branch` [N, c]: [N, n, c], fp32 with one rounding."""
    output = branch.float()
    targets = [
        (_mix(res[:, target], streams) + post[:, target, None].float() * output).to(streams.dtype)
        for target in range(streams.shape[1])
    ]
    return torch.stack(targets, dim=1)


def _mix(weights: Tensor, streams: Tensor) -> Tensor:
    """fp32 sum over streams of `weights` [N, n] times `streams` [N, n, c], first stream first."""
    total = weights[:, 0, None].float() * streams[:, 0].float()
    for source in range(1, streams.shape[1]):
        total = total + weights[:, source, None].float() * streams[:, source].float()
    return total
