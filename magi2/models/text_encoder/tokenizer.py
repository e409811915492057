"""Text to token ids and character offsets, with the extra splitter that the weights were released with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magi2.errors import CheckpointError, InputError, PromptTooLongError

if TYPE_CHECKING:
    from tokenizers import Tokenizer, pre_tokenizers

# Every character in these ranges becomes a piece of its own before the stock pre-tokenizer sees the text, so no merge
# crosses it. The first range, ASCII `0` to `U`, is an accident of the published pattern: its last term was meant to
# be U+20000-2FFFF, but the regex engine reads that escape as literal characters. The class is written here with
# explicit ranges, because another engine may read the published pattern differently.
# Source: MAGI-2 preview text encoder; the ranges were measured code point by code point.
ISOLATED_RANGES = (
    (0x0030, 0x0055),
    (0x1100, 0x11FF),
    (0x2E80, 0xA4CF),
    (0xA840, 0xD7AF),
    (0xF900, 0xFAFF),
    (0xFE30, 0xFE4F),
    (0xFF65, 0xFFDC),
)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class Tokens:
    """Token ids and, for each, the half-open character span `(start, end)` in the text it came from."""

    ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.ids)

    def first(self, count: int) -> Tokens:
        """The first `count` tokens (all of them when there are fewer)."""
        return Tokens(self.ids[:count], self.offsets[:count])


class PromptTokenizer:
    """The checkpoint's tokenizer behind the extra splitter: raw text only, no template, no special tokens added.

    The tokenizer handed in is changed in place and belongs to this object from then on.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        from tokenizers import pre_tokenizers  # here, since plans count tokens, and whoever imports them need not

        stock = tokenizer.pre_tokenizer
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([isolating_splitter(), *([stock] if stock else [])])
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer

    def tokenize(self, text: str) -> Tokens:
        """All tokens of `text`. Raises: InputError when the text holds a lone surrogate, which no encoding accepts."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"prompt: character {error.start} is the lone surrogate {text[error.start]!a}",
                hint="save the prompt as valid UTF-8",
            ) from error
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return Tokens(ids=tuple(encoding.ids), offsets=tuple(encoding.offsets))


def require_at_most(count: int, limit: int) -> None:
    """Raises PromptTooLongError when a text has more tokens than the encoder reads."""
    if count > limit:
        raise PromptTooLongError(f"prompt: {count:,} tokens, limit {limit:,}")


def isolating_splitter() -> pre_tokenizers.Split:
    """A pre-tokenizer that cuts out each character of `ISOLATED_RANGES`; the text around it stays whole."""
    from tokenizers import Regex, pre_tokenizers

    ranges = "".join(f"{chr(first)}-{chr(last)}" for first, last in ISOLATED_RANGES)
    return pre_tokenizers.Split(Regex(f"[{ranges}]"), behavior="isolated")


def load_prompt_tokenizer(folder: Path) -> PromptTokenizer:
    """The tokenizer of a checkpoint folder, without its weights (enough to count tokens).

    It is `tokenizer.json` as it stands, read without transformers, whose import takes seconds. Never runs code from the
    folder and never asks the network. Raises: CheckpointError when a file is missing or unreadable, or when
    `tokenizer_config.json` has a special token that `tokenizer.json` lacks.
    """
    from tokenizers import Tokenizer

    for name in TOKENIZER_FILES:
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder / name}: tokenizer file is missing")
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        named = set(_special_tokens(config))
    except Exception as error:  # tokenizers raises a bare Exception; all mean the same to the user
        raise CheckpointError(f"{folder}: unreadable tokenizer: {error}") from error
    # transformers would add them behind the vocabulary; the released files agree, so this folder is not what it seems.
    if absent := named - {token.content for token in tokenizer.get_added_tokens_decoder().values()}:
        raise CheckpointError(f"{folder / 'tokenizer_config.json'}: tokenizer.json lacks {', '.join(sorted(absent))}")
    tokenizer.encode_special_tokens = bool(config.get("split_special_tokens"))
    return PromptTokenizer(tokenizer)


def _special_tokens(config: dict[str, Any]) -> Iterator[str]:
    """Tokens that a `tokenizer_config.json` names, each cut out of a text as one piece."""
    more = config.get("extra_special_tokens", config.get("additional_special_tokens")) or ()
    named = [value for key, value in config.items() if key.endswith("_token")]
    named += [*config.get("added_tokens_decoder", {}).values(), *(more.values() if isinstance(more, dict) else more)]
    for token in named:
        if isinstance(token, dict):
            yield token["content"]
        elif isinstance(token, str):
            yield token
