"""The tiny text encoder: complete, reproducible, and telling prompts apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer

from magi2.models.text_encoder.encoder import load_text_encoder
from magi2.models.text_encoder.tiny import write_tiny_text_encoder
from magi2.models.text_encoder.tower import expected_tensors

PROMPTS = ("a red fox walks in the snow", "a blue fox walks in the snow", "THE 3 cats; VWXYZ", "雪地里的狐狸")


def test_equal_seeds_give_equal_bytes(tiny_text_folder: Path, tmp_path: Path) -> None:
    write_tiny_text_encoder(tmp_path / "again", seed=7)
    write_tiny_text_encoder(tmp_path / "other", seed=8)
    names = sorted(path.name for path in tiny_text_folder.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "again").iterdir())
    for name in names:
        content = (tiny_text_folder / name).read_bytes()
        assert (tmp_path / "again" / name).read_bytes() == content
        assert ((tmp_path / "other" / name).read_bytes() == content) != name.endswith(".safetensors")


def test_folder_has_the_published_layout(tiny_text_folder: Path) -> None:
    index = json.loads((tiny_text_folder / "model.safetensors.index.json").read_text())
    shards = set(index["weight_map"].values())
    assert len(shards) == 2
    stored = {}
    for shard in shards:
        with safe_open(tiny_text_folder / shard, framework="pt") as handle:
            stored |= {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118
    assert stored.keys() == index["weight_map"].keys()
    assert {part.get_dtype() for part in stored.values()} == {"BF16"}
    assert {"model.visual.merger.norm.weight", "lm_head.weight", "model.language_model.norm.weight"} <= stored.keys()
    config = json.loads((tiny_text_folder / "config.json").read_text())
    assert expected_tensors(config).items() <= {name: tuple(part.get_shape()) for name, part in stored.items()}.items()


@pytest.mark.parametrize("text", PROMPTS)
def test_transformers_reads_the_tokenizer(text: str, tiny_text_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_text_folder)
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.eos_token == "<|im_end|>"


def test_common_words_are_single_tokens(tiny_text_folder: Path) -> None:
    assert load_text_encoder(tiny_text_folder).count_tokens("a red fox walks in the snow") == 7


def test_embeddings_are_of_order_one_and_tell_prompts_apart(tiny_text_folder: Path) -> None:
    encoder = load_text_encoder(tiny_text_folder)
    red, blue = (encoder.encode(prompt).embeds.float() for prompt in PROMPTS[:2])
    for prompt in PROMPTS:
        assert 0.5 < encoder.encode(prompt).embeds.float().square().mean().sqrt() < 3
    # The two prompts differ in their second word; the rows of the last word must still tell.
    assert (red[0, -1] - blue[0, -1]).norm() / red[0, -1].norm() > 0.05


def test_size_is_free(tmp_path: Path) -> None:
    write_tiny_text_encoder(tmp_path, seed=0, hidden_size=48, num_layers=4)
    encoder = load_text_encoder(tmp_path, dtype=torch.float32)
    assert encoder.hidden_size == 48
    assert encoder.encode("fox").embeds.shape[-1] == 48
