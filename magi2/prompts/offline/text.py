"""Clean a prompt without losing a character that shows, and hide spans from word matching."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

_FIGURE = re.compile(r"(<Figure [0-9]+>)")
_LINE_END = re.compile(r"\r\n|[\r\u0085\u2028\u2029]")
_BLANKS = re.compile(r"[^\S\n]+")

Range = tuple[int, int]


def normalise(prompt: str) -> str:
    """The prompt in NFC with LF line ends, without control characters, with single blanks and no blank lines.

    `<Figure N>` tokens are kept byte for byte: composing one with a following mark would destroy it.
    """
    text = _LINE_END.sub("\n", prompt.removeprefix("\ufeff"))
    text = "".join(char for char in text if char in "\n\t" or unicodedata.category(char) != "Cc")
    parts = _FIGURE.split(text)
    text = "".join(part if index % 2 else unicodedata.normalize("NFC", part) for index, part in enumerate(parts))
    lines = (_BLANKS.sub(" ", line).strip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line)


def one_line(text: str) -> str:
    """The text with every run of blanks and line ends as one blank."""
    return " ".join(text.split())


def hide(text: str, ranges: Iterable[Range]) -> str:
    """The text, same length, with the given ranges overwritten by NUL so that no word matches there."""
    chars = list(text)
    for start, end in ranges:
        chars[start:end] = "\0" * (end - start)
    return "".join(chars)


def figure_ranges(text: str) -> list[Range]:
    """Where `<Figure N>` tokens stand."""
    return [match.span() for match in _FIGURE.finditer(text)]
