"""Bilingual word lists (English and Chinese) and the matching of their terms in a prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

_FOLDER = "lexicon"
_FILES = ("cues.json", "entities.json", "fields.json")


@cache
def load_words(name: str) -> Any:
    """The parsed word list of that name, without its suffix."""
    return json.loads((files("magi2.prompts") / _FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def words_digest() -> str:
    """SHA-256 over all word lists: they decide what the offline structurer writes."""
    digest = sha256()
    for name in _FILES:
        digest.update((files("magi2.prompts") / _FOLDER / name).read_bytes())
    return digest.hexdigest()


def alternatives(english: Iterable[str], chinese: Iterable[str] = ()) -> str:
    """A regular expression for any of the terms, longest first; English ones as whole words, blanks flexible."""
    latin = sorted(english, key=lambda term: (-len(term), term))
    han = sorted(chinese, key=lambda term: (-len(term), term))
    parts = []
    if latin:
        words = "|".join(r"\s+".join(map(re.escape, term.split())) for term in latin)
        parts.append(rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])")
    if han:
        parts.append("|".join(map(re.escape, han)))
    return "|".join(parts) or r"(?!)"


@cache
def _cue_patterns(name: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    entry = load_words("cues")[name]
    excluded = entry["not"]
    return (
        re.compile(alternatives(entry["en"], entry["zh"]), re.IGNORECASE),
        re.compile(
            alternatives([term for term in excluded if term.isascii()], [t for t in excluded if not t.isascii()]),
            re.IGNORECASE,
        ),
    )


def cue_positions(name: str, text: str) -> list[tuple[int, int]]:
    """Start and end of each cue of that kind in the text, look-alikes (街道 for 道) left out."""
    wanted, excluded = _cue_patterns(name)
    masked = excluded.sub(lambda match: "\0" * len(match[0]), text)
    return [match.span() for match in wanted.finditer(masked)]


def has_cue(name: str, text: str) -> bool:
    """Whether the text holds a cue of that kind."""
    return bool(cue_positions(name, text))


@cache
def _field_pattern(name: str) -> tuple[re.Pattern[str], dict[str, str]]:
    entries = load_words("fields")[name]
    values = {term.lower(): entry["value"] for entry in entries for term in entry["en"] + entry["zh"]}
    english = [term for entry in entries for term in entry["en"]]
    chinese = [term for entry in entries for term in entry["zh"]]
    return re.compile(alternatives(english, chinese), re.IGNORECASE), values


def field_match(name: str, text: str) -> tuple[str, tuple[int, int]] | None:
    """The value of the first term of that field in the text and where it stands; None without one."""
    pattern, values = _field_pattern(name)
    match = pattern.search(text)
    return (values[" ".join(match[0].lower().split())], match.span()) if match else None


def field_value(name: str, text: str) -> str:
    """The value of the first term of that field in the text, blank without one."""
    match = field_match(name, text)
    return match[0] if match else ""
