"""Pooling over figure mentions, against the preview golden and at the edges."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from magi2.models.text_encoder.encoder import TextEncoding
from magi2.models.text_encoder.figures import pool_figures


def encoding_of(text: str, embeds: torch.Tensor, *, chunk: int) -> TextEncoding:
    """A tokenisation into consecutive chunks of `chunk` characters."""
    offsets = tuple((i * chunk, (i + 1) * chunk) for i in range(embeds.shape[1]))
    return TextEncoding(embeds, tuple(range(len(offsets))), offsets, text, dropped_tokens=0)


def test_pooling_matches_the_published_rows_to_one_bf16_ulp(golden: Path) -> None:
    case = json.loads((golden / "preview" / "figure_token_pool.json").read_text())
    tensors = load_file(golden / "preview" / "figure_token_pool.safetensors")
    pooled = pool_figures(encoding_of(case["prompt"], tensors["text_feature"], chunk=4), [1, 2, 3])
    assert pooled.embeds.dtype == torch.bfloat16
    assert pooled.found == [case["indices"][target] is not None for target in case["targets"]]
    ulp = torch.finfo(torch.bfloat16).eps
    torch.testing.assert_close(pooled.embeds, tensors["special_tokens"], rtol=ulp, atol=0)


def test_only_the_first_mention_counts() -> None:
    text = "<Figure 3><Figure 3>"
    embeds = torch.tensor([[[1.0], [5.0]]])
    assert pool_figures(encoding_of(text, embeds, chunk=10), [3]).embeds.tolist() == [[1.0]]


def test_longer_number_is_not_a_mention_of_its_first_digit() -> None:
    assert pool_figures(encoding_of("<Figure 12>", torch.ones(1, 11, 2), chunk=1), [1, 12]).found == [False, True]


def test_half_truncated_mention_is_pooled_over_what_is_left() -> None:
    embeds = torch.tensor([[[9.0], [1.0], [3.0]]])
    pooled = pool_figures(encoding_of("of  <Figure 1>", embeds, chunk=4), [1])
    assert pooled.embeds.tolist() == [[2.0]]
    assert pooled.found == [True]


def test_no_figures_give_no_rows() -> None:
    pooled = pool_figures(encoding_of("a fox", torch.ones(1, 2, 3), chunk=4), [])
    assert pooled.embeds.shape == (0, 3)
    assert pooled.found == []
