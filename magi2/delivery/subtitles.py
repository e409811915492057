"""WebVTT of what is said in a clip, where its caption gives words and times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from magi2.prompts.clock import CLIP_TENTHS, Span, parse_span


@dataclass(frozen=True, order=True)
class Line:
    """What somebody says, from and to in tenths of a second."""

    span: Span
    speaker: str
    text: str


def webvtt(caption: Mapping[str, Any] | None) -> str | None:
    """The timed dialogue of a structured caption of either shape, or None when there is none."""
    lines = sorted({*_of_segments(caption or {}), *_of_events(caption or {})})
    if not lines:
        return None
    return "\n".join(["WEBVTT", "", *(row for line in lines for row in _rows(line))])


def _rows(line: Line) -> Iterator[str]:
    voice = f"<v {_escaped(line.speaker)}>" if line.speaker else ""
    yield f"{_time(line.span[0])} --> {_time(line.span[1])}"
    yield f"{voice}{_escaped(line.text)}"
    yield ""


def _of_segments(caption: Mapping[str, Any]) -> Iterator[Line]:
    """The lines of a text-to-video caption."""
    for segment in _list(_object(caption, "dynamic_layer"), "timeline_segments"):
        for each in _list(_object(segment, "audio"), "dialogue_lines"):
            span = parse_span(each["timestamp"]) if isinstance(each.get("timestamp"), str) else None
            yield from _line(span, each.get("speaker"), each.get("text"))


def _of_events(caption: Mapping[str, Any]) -> Iterator[Line]:
    """The lines of an image-to-video caption."""
    for each in _list(caption, "audio_event_timeline"):
        match each.get("time_range_seconds"):
            case [int() | float() as start, int() | float() as end] if math.isfinite(start) and math.isfinite(end):
                yield from _line((round(start * 10), round(end * 10)), None, each.get("spoken_text"))


def _line(span: Span | None, speaker: object, text: object) -> Iterator[Line]:
    words = " ".join(text.split()) if isinstance(text, str) else ""
    if span is None or not words:
        return
    start, end = max(span[0], 0), min(span[1], CLIP_TENTHS)
    if start < end:
        yield Line((start, end), " ".join(speaker.split()) if isinstance(speaker, str) else "", words)


def _time(tenths: int) -> str:
    return f"00:{tenths // 600:02d}:{tenths // 10 % 60:02d}.{tenths % 10}00"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _object(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = parent.get(key)
    return value if isinstance(value, Mapping) else {}


def _list(parent: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = parent.get(key)
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
