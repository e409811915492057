"""Times inside the ten-second clip, in whole tenths of a second."""

from __future__ import annotations

import re
from itertools import pairwise

CLIP_TENTHS = 100
MAX_SEGMENTS = 6

# Default cut points by number of segments. Source: MAGI-2 preview caption conventions.
_CUTS: dict[int, tuple[int, ...]] = {
    1: (),
    2: (50,),
    3: (33, 66),
    4: (25, 50, 75),
    5: (20, 40, 60, 80),
    6: (17, 34, 51, 68, 84),
}

Span = tuple[int, int]

_INSTANT = re.compile(r"(?:([0-9]{1,2}):)?([0-9]{1,3})(?:[.,]([0-9]{1,6}))?\s*s?", re.ASCII)
_SEPARATOR = re.compile(r"\s*(?:-|–|—|~|\bto\b)\s*")


def default_spans(count: int) -> list[Span]:
    """The default grid of `count` (1 to 6) contiguous segments."""
    edges = [0, *_CUTS[count], CLIP_TENTHS]
    return list(pairwise(edges))


def format_instant(tenths: int) -> str:
    """`MM:SS.s`."""
    return f"{tenths // 600:02d}:{tenths // 10 % 60:02d}.{tenths % 10}"


def format_span(span: Span) -> str:
    """`MM:SS.s-MM:SS.s`."""
    return f"{format_instant(span[0])}-{format_instant(span[1])}"


def parse_instant(text: str) -> int | None:
    """Tenths of a second of `MM:SS.s`, `SS.s` or `SS s`; None for anything else."""
    match = _INSTANT.fullmatch(text.strip())
    if not match:
        return None
    minutes, seconds, fraction = match[1] or "0", match[2], match[3] or "0"
    return round((int(minutes) * 60 + float(f"{seconds}.{fraction}")) * 10)


def parse_span(text: str) -> Span | None:
    """Start and end in tenths, in the order written; None unless the text is two instants with a dash between."""
    parts = _SEPARATOR.split(text.strip())
    if len(parts) != 2:
        return None
    start, end = map(parse_instant, parts)
    return None if start is None or end is None else (start, end)


def spread(span: Span, count: int) -> list[Span]:
    """`count` spans of at least one tenth, spread evenly over `span` (itself at least one tenth long)."""
    start, end = span
    length = end - start
    starts = [min(start + length * index // count, end - 1) for index in range(count)]
    ends = [start + length * (index + 1) // count for index in range(count)]
    return [(begin, min(end, max(stop, begin + 1))) for begin, stop in zip(starts, ends, strict=True)]
