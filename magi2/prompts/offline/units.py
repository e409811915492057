"""Event units: the separately readable steps of a prompt, and when each of them happens."""

from __future__ import annotations

import heapq
import re
from dataclasses import dataclass
from itertools import pairwise

from magi2.prompts.clock import CLIP_TENTHS, MAX_SEGMENTS, Span, default_spans
from magi2.prompts.words import load_words

# Full-width punctuation is written as escapes: it looks like ASCII to most readers.
_CLOCK = r"[0-9]{1,2}:[0-9]{2}(?:\.[0-9]{1,3})?"
_DASH = r"\s*(?:-|–|—|~|\uff0d|\uff5e|to|至|到)\s*"
_SECONDS = r"[0-9]{1,3}(?:\.[0-9]{1,3})?"
_UNIT = r"(?:s|secs?|seconds?|秒)(?![A-Za-z])"
_MARK = re.compile(
    rf"[\[(\uff08\u3010]?(?P<clock_from>{_CLOCK}){_DASH}(?P<clock_to>{_CLOCK})[\])\uff09\u3011]?"
    rf"|[\[(\uff08\u3010]?(?<![0-9.:A-Za-z])(?P<from>{_SECONDS})\s*(?:{_UNIT})?{_DASH}(?P<to>{_SECONDS})\s*{_UNIT}[\])\uff09\u3011]?"
    rf"|\[(?P<clock>{_CLOCK})\]"
    r"|(?<![A-Za-z])shot\s+#?[0-9]{1,2}(?![0-9A-Za-z])"
    r"|(?:镜头|分镜)\s*(?:[0-9]{1,2}|[一二三四五六七八九十]{1,3})(?=[\s:,.)\uff1a\uff0c\u3001\u3002\uff09])"
    r"|第[0-9一二三四五六七八九十]{1,3}(?:个镜头|镜|幕)(?=[\s:,.)\uff1a\uff0c\u3001\u3002\uff09])",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[.!?…]+[\"”’」』)\]]*(?=\s)|[。\uff01\uff1f\uff1b]+[\"”’」』)\uff09\]]*|\n+")
_SEQUENCE = re.compile(
    r"(?<=[\s,;])(?<!since )(?<!until )(?<!by )(?<!back )(?<!even )(?<!and )(?:and\s+)?then(?![A-Za-z])"
    r"|(?<=[,;] )(?:and\s+)?(?:next|afterwards?|after\s+that|finally)(?![A-Za-z])(?!\s+to\b)"
    r"|(?<=[^,;] )and\s+(?:afterwards?|after\s+that|finally)(?![A-Za-z])"
    r"|然后|接着|随后|最后(?![一的])",
    re.IGNORECASE,
)
_WORD_BEFORE = re.compile(r"([A-Za-z.]+)\.$")
_LEAST_TENTHS = 5  # explicit times closer than this are not worth a cut


@dataclass(frozen=True)
class Unit:
    """A slice of the prompt that happens in one segment, and the tenths of a second that it fills."""

    start: int
    end: int
    span: Span


def split_units(text: str, masked: str) -> tuple[list[Unit], bool]:
    """One to six units that together are the whole text, and whether the prompt marked its cuts itself.

    `masked` is `text` with quotations hidden: nothing is split inside them.
    """
    marks = list(_MARK.finditer(masked))
    # A single mark is a remark ("a 3-5 second clip"), not a timeline.
    explicit = len(marks) > 1
    cuts = [match.start() for match in marks] if explicit else _prose_cuts(masked)
    times = _mark_times(marks) if explicit else None
    if explicit:
        # Words before the first mark fill the time up to it; a mark at zero (or without a time) takes them in.
        if times and times[0][0] > 0 and _has_words(masked[: cuts[0]]):
            cuts, times = [0, *cuts], [(0.0, times[0][0]), *times]
        else:
            cuts[0] = 0
    pieces = _pieces(masked, cuts, len(text))
    if times and len(times) != len(pieces):
        times = None
    pieces = _merge_shortest(pieces)
    spans = _rescaled(pieces, cuts, times) or default_spans(len(pieces))
    return [Unit(*piece, span) for piece, span in zip(pieces, spans, strict=True)], explicit


def _prose_cuts(masked: str) -> list[int]:
    abbreviations = set(load_words("cues")["abbreviations"])
    cuts = {match.start() for match in _SEQUENCE.finditer(masked)}
    for match in _SENTENCE.finditer(masked):
        word = _WORD_BEFORE.search(masked[max(0, match.start() - 12) : match.start() + 1])
        if not word or word[1].lower() not in abbreviations:
            cuts.add(match.end())
    return sorted(cuts)


def _pieces(masked: str, cuts: list[int], length: int) -> list[Span]:
    """Adjacent slices of the text; one without a word joins the slice before it."""
    pieces: list[Span] = []
    for start, end in pairwise([0, *(cut for cut in cuts if 0 < cut < length), length]):
        if pieces and not (_has_words(masked[start:end]) and _has_words(masked[pieces[-1][0] : pieces[-1][1]])):
            pieces[-1] = (pieces[-1][0], end)
        else:
            pieces.append((start, end))
    return pieces


def _has_words(masked: str) -> bool:
    # NUL stands for a quotation: spoken or readable words are words.
    return any(char.isalnum() or char == "\0" for char in masked)


def _merge_shortest(pieces: list[Span]) -> list[Span]:
    """At most six pieces: the adjacent pair that is shortest together is joined again and again, the first one on
    a tie."""
    follows = dict(pieces)
    precedes = {end: start for start, end in pieces}
    heap = [(last[1] - first[0], first[0], last[0], last[1]) for first, last in pairwise(pieces)]
    heapq.heapify(heap)
    while len(follows) > MAX_SEGMENTS:
        _, start, middle, end = heapq.heappop(heap)
        if follows.get(start) != middle or follows.get(middle) != end:
            continue  # one of the two was joined to another piece meanwhile
        del follows[middle]
        follows[start], precedes[end] = end, start
        if start in precedes:
            before = precedes[start]
            heapq.heappush(heap, (end - before, before, start, end))
        if end in follows:
            heapq.heappush(heap, (follows[end] - start, start, end, follows[end]))
    return sorted(follows.items())


def _mark_times(marks: list[re.Match[str]]) -> list[tuple[float, float | None]] | None:
    """Start and, where given, end of each mark in seconds; None unless every mark has a start."""
    times: list[tuple[float, float | None]] = []
    for match in marks:
        start = match["clock_from"] or match["from"] or match["clock"]
        if start is None:
            return None
        end = match["clock_to"] or match["to"]
        times.append((_seconds(start), _seconds(end) if end else None))
    return times


def _seconds(text: str) -> float:
    minutes, _, seconds = text.rpartition(":")
    return int(minutes or 0) * 60 + float(seconds)


def _rescaled(pieces: list[Span], cuts: list[int], times: list[tuple[float, float | None]] | None) -> list[Span] | None:
    """The marked times stretched to the clip; None when there are none or they do not increase."""
    if not times:
        return None
    starts = [start for start, _ in times]
    by_piece = dict(zip(cuts, starts, strict=True))
    first, last, end = starts[0], starts[-1], times[-1][1]
    if end is None or end <= last:
        clip, pace = CLIP_TENTHS / 10, (last - first) / (len(starts) - 1)
        end = clip if last < clip else last + pace
    if end <= first:
        return None
    edges = [round((by_piece[start] - first) * CLIP_TENTHS / (end - first)) for start, _ in pieces] + [CLIP_TENTHS]
    spans = list(pairwise(edges))
    return spans if all(stop - start >= _LEAST_TENTHS for start, stop in spans) else None
