"""One text in, one embedding out: `[1, L, C]`, one row per token, no padding, no pooling."""

# Shapes: L tokens, C hidden size

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from magi2.models.checkpoint import LoadReport, SafetensorsFolder
from magi2.models.text_encoder.tokenizer import PromptTokenizer, Tokens, load_prompt_tokenizer, require_at_most
from magi2.models.text_encoder.tower import load_tower, parse_config, read_config

logger = logging.getLogger(__name__)

MAX_TOKENS = 7000  # Source: MAGI-2 preview engine settings


@dataclass(frozen=True)
class TextEncoding:
    """A text's embedding together with the tokenisation it was made from.

    `embeds` is `[1, L, C]` in the encoder's dtype on its device; `token_ids` and `offsets` have L entries, an offset
    being the half-open character span in `text`; `dropped_tokens` were cut off at the end.
    """

    embeds: Tensor
    token_ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]
    text: str
    dropped_tokens: int


class TextEncoder:
    """Encodes exactly the text it is given: prompts are normalised, and figure hints added, before they come here."""

    def __init__(
        self, tower: nn.Module, tokenizer: PromptTokenizer, *, load_report: LoadReport, max_tokens: int = MAX_TOKENS
    ) -> None:
        self.tower = tower
        self.tokenizer = tokenizer
        self.load_report = load_report
        self.max_tokens = max_tokens

    @property
    def hidden_size(self) -> int:
        """Channels of an embedding row."""
        return self._token_table.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of weights and embeddings."""
        return self._token_table.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are and the embeddings come back."""
        return self._token_table.device

    def count_tokens(self, text: str) -> int:
        """Tokens of the whole text, without running the network."""
        return len(self.tokenizer.tokenize(text))

    def encode(self, text: str, *, on_overflow: Literal["refuse", "truncate"] = "refuse") -> TextEncoding:
        """The embedding of `text`; `[1, 0, C]` for the empty text.

        A text of more than `max_tokens` tokens is refused, or cut to the first `max_tokens` and reported in
        `dropped_tokens`. Raises: PromptTooLongError, before the network runs; InputError for invalid Unicode.
        Source: MAGI-2 preview text encoder.
        """
        tokens = self.tokenizer.tokenize(text)
        kept = tokens.first(self.max_tokens)
        dropped = len(tokens) - len(kept)
        if on_overflow == "refuse":
            require_at_most(len(tokens), self.max_tokens)
        if dropped:
            logger.warning("prompt cut to the first %d of %d tokens", len(kept), len(tokens))
        return TextEncoding(self._embed(kept), kept.ids, kept.offsets, text, dropped)

    @torch.no_grad()
    def _embed(self, tokens: Tokens) -> Tensor:
        if not tokens.ids:
            return torch.zeros(1, 0, self.hidden_size, dtype=self.dtype, device=self.device)
        ids_1L = torch.tensor([tokens.ids], device=self.device)
        # Without a mask attention is causal over positions 0..L-1, which is all a single text needs.
        embeds_1LC: Tensor = self.tower(input_ids=ids_1L, use_cache=False).last_hidden_state
        return embeds_1LC

    @property
    def _token_table(self) -> Tensor:
        return self.tower.get_parameter("embed_tokens.weight")


def load_text_encoder(
    folder: Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    max_tokens: int = MAX_TOKENS,
) -> TextEncoder:
    """The text encoder of a folder in the published layout (`config.json`, tokenizer files, safetensors shards).

    Only the layers that run are built and read. Raises: CheckpointError naming the file, and the tensor if it is one.
    """
    config = parse_config(read_config(folder))
    tokenizer = load_prompt_tokenizer(folder)
    tower, report = load_tower(config, SafetensorsFolder(folder), device=device, dtype=dtype)
    return TextEncoder(tower, tokenizer, load_report=report, max_tokens=max_tokens)
