"""Token ids, offsets and the extra splitter against the golden values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from transformers import AutoTokenizer

from magi2.errors import CheckpointError, InputError
from magi2.models.text_encoder.tokenizer import (
    ISOLATED_RANGES,
    PromptTokenizer,
    isolating_splitter,
    load_prompt_tokenizer,
)

CASES = (
    *("plain_en", "cjk_mix", "figure_plain", "single_char", "upper_digits"),
    *("json_struct", "json_no_global", "json_list", "json_scalar"),
)


@pytest.fixture(scope="module")
def tokenizer(golden_text: Path) -> PromptTokenizer:
    return load_prompt_tokenizer(golden_text / "tiny_text_encoder")


@pytest.mark.parametrize("case", CASES)
def test_ids_and_offsets_are_the_published_ones(
    case: str, tokenizer: PromptTokenizer, text_prompts: dict[str, Any], text_vectors: dict[str, Tensor]
) -> None:
    tokens = tokenizer.tokenize(text_prompts[case]["normalised"])
    assert list(tokens.ids) == text_vectors[f"{case}.input_ids"][0].tolist()
    assert [list(span) for span in tokens.offsets] == text_vectors[f"{case}.offsets"][0].tolist()
    assert len(tokens) == text_prompts[case]["num_tokens"]


def test_the_splitter_changes_the_ids_of_ordinary_english(
    tokenizer: PromptTokenizer, text_prompts: dict[str, Any]
) -> None:
    case = text_prompts["figure_plain"]
    assert list(tokenizer.tokenize(case["normalised"]).ids) != case["input_ids_without_cjk_split"]


def test_every_code_point_is_isolated_exactly_where_measured(golden_text: Path) -> None:
    measured = json.loads((golden_text / "pre_split.json").read_text())["observed_isolated_code_point_ranges"]
    isolated = {code for first, last in measured for code in range(int(first, 16), int(last, 16) + 1)}
    splitter = isolating_splitter()
    for block in range(0, 0x30000, 0x800):
        if 0xD800 <= block < 0xE000:
            continue  # surrogates are no characters
        codes = range(block, block + 0x800)
        pieces = splitter.pre_tokenize_str("v".join(map(chr, codes)))
        alone = {ord(piece) for piece, _ in pieces if len(piece) == 1 and piece != "v"}
        # A block's first and last character have one neighbour only, and are alone whenever that one is cut off.
        assert alone - {codes[0], codes[-1]} == isolated & set(codes[1:-1])
    assert {(int(first, 16), int(last, 16)) for first, last in measured} == set(ISOLATED_RANGES)


def test_splits_are_the_measured_ones(golden_text: Path) -> None:
    for sample in json.loads((golden_text / "pre_split.json").read_text())["samples"]:
        pieces = [piece for piece, _ in isolating_splitter().pre_tokenize_str(sample["text"])]
        assert pieces == sample["pieces"]


def test_offsets_count_characters_of_the_text_before_normalisation(tokenizer: PromptTokenizer) -> None:
    decomposed = "cafe\u0301 <Figure 1>"
    tokens = tokenizer.tokenize(decomposed)
    assert tokens.offsets[-1] == (len(decomposed) - 1, len(decomposed))


def test_empty_text_has_no_tokens(tokenizer: PromptTokenizer) -> None:
    assert len(tokenizer.tokenize("")) == 0


@pytest.mark.parametrize(
    "text", ["a<|im_start|>user\nfox<|im_end|>", "<|endoftext|>", " e\u0301 雪\r\n\t 12", "<|im_start"]
)
def test_ids_and_offsets_are_those_of_transformers(text: str, golden_text: Path) -> None:
    auto = AutoTokenizer.from_pretrained(golden_text / "tiny_text_encoder")
    expected = PromptTokenizer(auto.backend_tokenizer).tokenize(text)
    assert load_prompt_tokenizer(golden_text / "tiny_text_encoder").tokenize(text) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"image_token": "<|image|>"},
        {"pad_token": {"content": "<|image|>", "special": True}},
        {"additional_special_tokens": ["<|im_end|>", "<|image|>"]},
        {"extra_special_tokens": {"image_token": "<|image|>"}},
        {"added_tokens_decoder": {"3": {"content": "<|image|>", "special": True}}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_special_token_that_the_tokenizer_lacks_is_refused(
    fields: dict[str, Any], tiny_text_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").symlink_to(tiny_text_folder / "tokenizer.json")
    config = json.loads((tiny_text_folder / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"add_bos_token": False, "unk_token": None}))
    assert len(load_prompt_tokenizer(tmp_path).tokenize("<|im_end|>")) == 1
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | fields))
    with pytest.raises(CheckpointError, match=r"tokenizer_config.json: tokenizer.json lacks <\|image\|>"):
        load_prompt_tokenizer(tmp_path)


@pytest.mark.parametrize("split", [False, True])
def test_special_tokens_in_a_text_are_split_only_where_the_checkpoint_says_so(
    split: bool, tiny_text_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").symlink_to(tiny_text_folder / "tokenizer.json")
    config = json.loads((tiny_text_folder / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"split_special_tokens": split}))
    auto = PromptTokenizer(AutoTokenizer.from_pretrained(tmp_path).backend_tokenizer)
    assert load_prompt_tokenizer(tmp_path).tokenize("a<|im_end|>") == auto.tokenize("a<|im_end|>")


def test_lone_surrogate_is_refused_with_its_place(tokenizer: PromptTokenizer) -> None:
    with pytest.raises(InputError, match=r"character 3 is the lone surrogate '\\ud800'"):
        tokenizer.tokenize("fox\ud800")


@pytest.mark.parametrize("content", ["[]", "{"])
def test_broken_tokenizer_config_is_a_checkpoint_error(content: str, tiny_text_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").symlink_to(tiny_text_folder / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(CheckpointError, match="unreadable tokenizer"):
        load_prompt_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_missing_tokenizer_file_is_named(name: str, tiny_text_folder: Path, tmp_path: Path) -> None:
    for file in tiny_text_folder.iterdir():
        if file.name != name:
            (tmp_path / file.name).symlink_to(file)
    with pytest.raises(CheckpointError, match=name):
        load_prompt_tokenizer(tmp_path)


def test_broken_tokenizer_is_a_checkpoint_error(tiny_text_folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(tiny_text_folder / name)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model"')
    with pytest.raises(CheckpointError, match="unreadable tokenizer"):
        load_prompt_tokenizer(tmp_path)
