"""A complete text encoder of a few megabytes in the published folder layout, with seeded random weights."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from magi2.models.checkpoint import INDEX_NAME
from magi2.models.text_encoder.tower import PREFIX, build_tower, parse_config

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# The stock split of the Qwen3.5 tokenizer.
STOCK_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Words that become one token when a blank stands before them; all other text falls back to bytes.
WORDS = (
    *("a", "an", "the", "and", "of", "in", "on", "to", "from", "with", "at", "is", "are", "then", "while"),
    *("red", "green", "blue", "yellow", "white", "black", "small", "large", "slow", "fast", "left", "right"),
    *("man", "woman", "child", "dog", "cat", "fox", "bird", "car", "street", "room", "sea", "snow", "rain", "night"),
    *("walks", "runs", "speaks", "sings", "turns", "moves", "camera", "light", "sound", "voice", "music", "frame"),
)
VOCAB_MULTIPLE = 64  # the published table, too, has more rows than the tokenizer has tokens
_SHARDS = 2


def write_tiny_text_encoder(folder: Path, *, seed: int, hidden_size: int = 128, num_layers: int = 6) -> None:
    """Write a text encoder that `load_text_encoder` and transformers' `AutoTokenizer` read, under 4 MB by default.

    Layers follow the published pattern (three linear, one full attention); `num_layers` counts the two that are never
    run. Weights are bf16 and depend on `seed` alone, embeddings come out of order one. The parts that a loader must
    skip (last layers, final norm, vision tower, head, multi-token prediction) are there too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    config = _config(tokenizer.get_vocab_size(), hidden_size, num_layers)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", TOKENIZER_CONFIG)
    _write_json(folder / "config.json", config)
    _write_shards(folder, _weights(config, torch.Generator().manual_seed(seed)))


def build_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer in the published form: NFC, the stock split, a few special tokens."""
    vocab = {
        token: index for index, token in enumerate((*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())))
    }
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        token = "Ġ"  # a blank, in the byte-level alphabet
        for letter in word:
            if token + letter not in vocab:
                vocab[token + letter] = len(vocab)
                merges.append((token, letter))
            token += letter
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(STOCK_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


TOKENIZER_CONFIG = {
    "eos_token": "<|im_end|>",
    "model_max_length": 262144,
    "pad_token": "<|endoftext|>",
    "tokenizer_class": "TokenizersBackend",
}


def text_config(*, vocab_size: int, hidden_size: int, num_layers: int) -> dict[str, Any]:
    """The tower's part of `config.json`: the published structure at toy widths."""
    return {
        "model_type": "qwen3_5_text",
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": num_layers,
        "layer_types": ["linear_attention" if (i + 1) % 4 else "full_attention" for i in range(num_layers)],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "attn_output_gate": True,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 8192,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": False,
    }


def _config(tokens: int, hidden_size: int, num_layers: int) -> dict[str, Any]:
    vocab_size = math.ceil(tokens / VOCAB_MULTIPLE) * VOCAB_MULTIPLE
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text_config(vocab_size=vocab_size, hidden_size=hidden_size, num_layers=num_layers),
        "tie_word_embeddings": False,
        "vision_config": {"model_type": "qwen3_5", "depth": 1, "hidden_size": 16, "out_hidden_size": hidden_size},
    }


def _weights(config: dict[str, Any], generator: torch.Generator) -> dict[str, Tensor]:
    parsed = parse_config(config)
    hidden_size, vocab_size = parsed.hidden_size, parsed.vocab_size
    shapes = {
        PREFIX + name: tuple(slot.shape)
        for name, slot in build_tower(parsed, num_layers=parsed.num_hidden_layers).state_dict().items()
    }
    never_read = {
        PREFIX + "norm.weight": (hidden_size,),
        "lm_head.weight": (vocab_size, hidden_size),
        "model.visual.patch_embed.proj.weight": (16, 3, 2, 4, 4),
        "model.visual.merger.norm.weight": (16,),
        "mtp.norm.weight": (hidden_size,),
    }
    return {
        name: _draw(name, shape, generator).to(torch.bfloat16) for name, shape in sorted((shapes | never_read).items())
    }


def _draw(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    if name.endswith("embed_tokens.weight"):
        return noise
    if name.endswith("A_log"):
        return 0.5 * noise - 1  # decay rates around 1/e, so that the linear layers remember a few tokens
    if name.endswith("linear_attn.norm.weight"):
        return 1 + 0.1 * noise  # the one norm that multiplies by w, not by 1 + w
    if len(shape) == 1:
        return 0.1 * noise
    return noise / math.sqrt(math.prod(shape[1:]))


def _write_shards(folder: Path, weights: dict[str, Tensor]) -> None:
    names = sorted(weights)
    size = math.ceil(len(names) / _SHARDS)
    weight_map: dict[str, str] = {}
    for shard in range(_SHARDS):
        file_name = f"model.safetensors-{shard + 1:05d}-of-{_SHARDS:05d}.safetensors"
        part = {name: weights[name] for name in names[shard * size : (shard + 1) * size]}
        save_file(part, folder / file_name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file_name)
    total = sum(weight.nbytes for weight in weights.values())
    _write_json(folder / INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
