"""Embeddings against the golden values, and what `encode` promises about length, dtype and overflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from magi2.errors import PromptTooLongError
from magi2.models.text_encoder.encoder import TextEncoder, load_text_encoder
from magi2.models.text_encoder.figures import pool_figures

FP32_TOLERANCE = 1e-4
BF16_TOLERANCE = 6e-2
CASES = (
    *("plain_en", "cjk_mix", "figure_plain", "single_char", "upper_digits"),
    *("json_struct", "json_no_global", "json_list", "json_scalar"),
)


def relative_error(value: Tensor, expected: Tensor) -> float:
    value, expected = value.double().cpu(), expected.double()
    return ((value - expected).norm() / expected.norm()).item()


def forbid_network(tower: nn.Module) -> torch.utils.hooks.RemovableHandle:
    def refuse(*_: Any) -> None:
        raise AssertionError("the network ran")

    return tower.register_forward_pre_hook(refuse)


@pytest.mark.parametrize("case", CASES)
def test_embedding_is_the_published_one(
    case: str, exact_encoder: TextEncoder, text_prompts: dict[str, Any], text_vectors: dict[str, Tensor]
) -> None:
    expected = text_vectors[f"{case}.embedding"]
    encoding = exact_encoder.encode(text_prompts[case]["normalised"])
    assert encoding.embeds.shape == expected.shape
    assert encoding.embeds.dtype == torch.float32
    assert relative_error(encoding.embeds, expected) < FP32_TOLERANCE


@pytest.mark.parametrize("case", CASES)
def test_pooled_figures_are_the_published_ones(
    case: str, exact_encoder: TextEncoder, text_prompts: dict[str, Any], text_vectors: dict[str, Tensor]
) -> None:
    pooled = pool_figures(exact_encoder.encode(text_prompts[case]["normalised"]), [1, 2])
    expected = text_vectors[f"{case}.figure_tokens"]
    assert pooled.found == [text_prompts[case]["figure1_indices"] is not None, False]
    if pooled.found[0]:
        assert relative_error(pooled.embeds, expected) < FP32_TOLERANCE
    else:
        assert not pooled.embeds.any()


def test_every_layer_gives_the_published_stream(
    exact_encoder: TextEncoder, text_prompts: dict[str, Any], text_vectors: dict[str, Tensor]
) -> None:
    streams: dict[str, Tensor] = {}
    modules = {"embed_tokens": exact_encoder.tower.get_submodule("embed_tokens")}
    modules |= {f"layer{i}_out": exact_encoder.tower.get_submodule(f"layers.{i}") for i in (0, 1, 3, 5)}
    hooks = [
        module.register_forward_hook(lambda _m, _i, output, name=name: streams.__setitem__(name, output))
        for name, module in modules.items()
    ]
    encoding = exact_encoder.encode(text_prompts["plain_en"]["normalised"])
    for hook in hooks:
        hook.remove()
    for name, stream in streams.items():
        assert relative_error(stream, text_vectors[f"plain_en.{name}"]) < FP32_TOLERANCE
    assert streams.keys() == modules.keys()
    torch.testing.assert_close(encoding.embeds, streams["layer5_out"], rtol=0, atol=0)


def test_bf16_embedding_is_the_published_one(
    golden_text: Path, text_prompts: dict[str, Any], text_vectors: dict[str, Tensor]
) -> None:
    encoder = load_text_encoder(golden_text / "tiny_text_encoder")
    embeds = encoder.encode(text_prompts["plain_en"]["normalised"]).embeds
    assert embeds.dtype == torch.bfloat16
    assert relative_error(embeds, text_vectors["plain_en.embedding_bf16"]) < BF16_TOLERANCE


def test_truncation_keeps_the_first_tokens_and_reports_the_rest(
    golden_text: Path, device: torch.device, text_prompts: dict[str, Any], text_vectors: dict[str, Tensor]
) -> None:
    encoder = load_text_encoder(golden_text / "tiny_text_encoder", device=device, dtype=torch.float32, max_tokens=10)
    encoding = encoder.encode(text_prompts["plain_en"]["normalised"], on_overflow="truncate")
    assert relative_error(encoding.embeds, text_vectors["trunc10.embedding"]) < FP32_TOLERANCE
    assert len(encoding.token_ids) == len(encoding.offsets) == 10
    assert encoding.dropped_tokens == 4


def test_figure_behind_the_truncation_point_is_a_flagged_zero_row(
    golden_text: Path, text_prompts: dict[str, Any], text_vectors: dict[str, Tensor]
) -> None:
    encoder = load_text_encoder(golden_text / "tiny_text_encoder", dtype=torch.float32, max_tokens=10)
    encoding = encoder.encode(text_prompts["figure_plain"]["normalised"], on_overflow="truncate")
    pooled = pool_figures(encoding, [1])
    assert torch.equal(pooled.embeds, text_vectors["trunc10.figure_tokens"])
    assert pooled.found == [False]


def test_too_long_prompt_is_refused_before_the_network_runs(tiny_text_folder: Path) -> None:
    encoder = load_text_encoder(tiny_text_folder)
    forbid_network(encoder.tower)
    with pytest.raises(PromptTooLongError, match="7,001 tokens, limit 7,000"):
        encoder.encode("0" * 7001)


def test_prompt_of_exactly_the_limit_is_encoded_whole(tiny_text_folder: Path) -> None:
    encoder = load_text_encoder(tiny_text_folder, max_tokens=5)
    encoding = encoder.encode("01234")
    assert encoding.embeds.shape == (1, 5, 128)
    assert encoding.dropped_tokens == 0


def test_counting_tokens_does_not_run_the_network(exact_encoder: TextEncoder, text_prompts: dict[str, Any]) -> None:
    hook = forbid_network(exact_encoder.tower)
    assert exact_encoder.count_tokens(text_prompts["json_struct"]["normalised"]) == 292
    hook.remove()


def test_empty_text_gives_an_empty_embedding_without_the_network(tiny_text_folder: Path) -> None:
    encoder = load_text_encoder(tiny_text_folder)
    forbid_network(encoder.tower)
    encoding = encoder.encode("")
    assert encoding.embeds.shape == (1, 0, 128)
    assert encoding.embeds.dtype == torch.bfloat16
    assert pool_figures(encoding, [1]).found == [False]


def test_rows_do_not_depend_on_later_text(exact_encoder: TextEncoder) -> None:
    short, long = exact_encoder.encode("a red fox"), exact_encoder.encode("a red fox, walking")
    length = len(short.token_ids)
    assert long.token_ids[:length] == short.token_ids
    torch.testing.assert_close(long.embeds[:, :length], short.embeds, rtol=1e-4, atol=1e-4)


def test_encoding_twice_gives_equal_bits(exact_encoder: TextEncoder) -> None:
    first, second = exact_encoder.encode("a red fox"), exact_encoder.encode("a red fox")
    assert torch.equal(first.embeds, second.embeds)


def test_the_tower_can_be_trained(tiny_text_folder: Path) -> None:
    encoder = load_text_encoder(tiny_text_folder, dtype=torch.float32)
    encoder.tower.requires_grad_(True)
    encoder.tower(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False).last_hidden_state.square().mean().backward()
    assert all(parameter.grad is not None for parameter in encoder.tower.parameters())
    assert not encoder.encode("a fox").embeds.requires_grad
