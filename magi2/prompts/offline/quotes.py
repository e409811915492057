"""Quotations in a prompt, and whether they are spoken, readable on screen, or neither."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from magi2.prompts.offline.text import Range, hide, one_line
from magi2.prompts.words import cue_positions

Kind = Literal["speech", "text", "prose"]

# A closing ’ followed by a letter is an apostrophe; a straight quote opens only where no word or number precedes it
# (6" is a length). Lengths are bounded so that a stray mark cannot swallow the prompt.
_QUOTATION = re.compile(
    r'(?<![0-9A-Za-z])"([^"\n]{1,600})"'
    r"|“([^“”]{1,600})”"
    r"|‘((?:[^‘’]|’(?=\w)){1,600})’(?!\w)"
    r"|「([^「」]{1,600})」"
    r"|『([^『』]{1,600})』"
)
_SENTENCE_END = re.compile(r"[.!?;。\uff01\uff1f\uff1b\n]")
_KINDS: tuple[Kind, ...] = ("speech", "text")
_BEFORE, _AFTER = 60, 30  # how far a cue may stand from its quotation, in characters


@dataclass(frozen=True)
class Quotation:
    """Words in quotation marks: where they stand, marks included, and what the words nearby say they are."""

    start: int
    end: int
    words: str
    kind: Kind


def find_quotations(text: str) -> list[Quotation]:
    """All quotations with content, in order."""
    matches = [match for match in _QUOTATION.finditer(text) if any(group and group.strip() for group in match.groups())]
    ranges = [match.span() for match in matches]
    masked = hide(text, ranges)
    edges = [(0, 0), *ranges, (len(text), len(text))]
    return [
        Quotation(*match.span(), one_line(next(filter(None, match.groups()))), _kind(masked, left, own, right))
        for match, left, own, right in zip(matches, edges, edges[1:], edges[2:], strict=False)
    ]


def _kind(masked: str, left: Range, own: Range, right: Range) -> Kind:
    """The kind of the nearest cue in front, in the same sentence; failing that, of the nearest one behind."""
    before = masked[max(left[1], own[0] - _BEFORE) : own[0]]
    for match in _SENTENCE_END.finditer(before.rstrip()):
        before = " " * match.end() + before[match.end() :]
    ends: dict[Kind, int] = {
        kind: end for kind in _KINDS if (end := max((e for _, e in cue_positions(kind, before)), default=0))
    }
    if ends:
        return max(ends, key=lambda kind: ends[kind])
    after = masked[own[1] : min(right[0], own[1] + _AFTER)]
    stop = _SENTENCE_END.search(after)
    after = after[: stop.start()] if stop else after
    starts: dict[Kind, int] = {
        kind: min(s for s, _ in found) for kind in _KINDS if (found := cue_positions(kind, after))
    }
    return min(starts, key=lambda kind: starts[kind]) if starts else "prose"
