"""Pooling the text embedding over the place where a prompt mentions a reference image."""

# Shapes: L tokens, M figures, C hidden size

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from magi2.models.text_encoder.encoder import TextEncoding


class FigureTokens(NamedTuple):
    """One row per figure, `[M, C]`, and whether the text mentions that figure (a zero row where it does not)."""

    embeds: Tensor
    found: list[bool]


def pool_figures(encoding: TextEncoding, numbers: Sequence[int]) -> FigureTokens:
    """The mean embedding of the tokens over the first `<Figure n>` of the text, for each n, in the embedding's dtype.

    A figure whose first mention is absent, or lies wholly behind the truncation point, gets a zero row.
    Source: MAGI-2 preview text encoder, special token pooling.
    """
    embeds_LC = encoding.embeds[0]
    rows_MC = embeds_LC.new_zeros(len(numbers), embeds_LC.shape[1])
    found = []
    for row, number in enumerate(numbers):
        tokens = _tokens_of(f"<Figure {number}>", encoding)
        if tokens:
            rows_MC[row] = embeds_LC[torch.tensor(tokens, device=embeds_LC.device)].mean(dim=0)
        found.append(bool(tokens))
    return FigureTokens(rows_MC, found)


def _tokens_of(mention: str, encoding: TextEncoding) -> list[int]:
    """Indices of the tokens that overlap the mention: not containment, as one may begin a blank early."""
    start = encoding.text.find(mention)
    if start < 0:
        return []
    stop = start + len(mention)
    return [i for i, (first, last) in enumerate(encoding.offsets) if first < stop and last > start]
