"""The large linear layers of the preview transformer, in either format of their weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from magi2.models.preview.config import FP8, Weights
from magi2.models.preview.grouped import GroupedLinear
from magi2.models.preview.ops import PreviewOps
from magi2.models.preview.quantised import E4M3, Quantised


class QuantisedLinear(nn.Module):
    """A `GroupedLinear` whose weight is e4m3, with a fp32 scale for each output channel of each set.

    `hidden` says that its input comes from SwiGLU7, and has a fixed scale instead of one by token.
    """

    def __init__(self, in_features: int, out_features: int, *, sets: int, hidden: bool) -> None:
        super().__init__()
        self.ops = PreviewOps()
        self.sets, self.hidden = sets, hidden
        rows = sets * out_features
        self.weight = nn.Parameter(torch.empty(rows, in_features, dtype=E4M3), requires_grad=False)
        self.weight_scale = nn.Parameter(torch.empty(rows), requires_grad=False)

    def forward(self, x: Tensor, group_sizes: Sequence[int]) -> Tensor:
        weight = Quantised(self.weight, self.weight_scale)
        return self.ops.quantised_linear(x, weight, tuple(group_sizes), self.sets, self.hidden)


def large_linear(
    in_features: int, out_features: int, *, sets: int, dtype: torch.dtype, weights: Weights, hidden: bool = False
) -> GroupedLinear | QuantisedLinear:
    """A large product's layer in the format `weights`; `hidden` where its input comes from SwiGLU7."""
    if weights == FP8:
        return QuantisedLinear(in_features, out_features, sets=sets, hidden=hidden)
    return GroupedLinear(in_features, out_features, sets=sets, dtype=dtype)
