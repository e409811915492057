"""Rules of the text-to-video timeline: segments tile the clip, and everything inside a segment stays inside it."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from magi2.prompts.clock import (
    CLIP_TENTHS,
    MAX_SEGMENTS,
    Span,
    default_spans,
    format_instant,
    format_span,
    parse_instant,
    parse_span,
)
from magi2.prompts.findings import Finding, fatal, repaired
from magi2.prompts.schema_t2v import SpecialAudioEvent, T2VCaption, TextRender, TimelineSegment

_READABLE_TENTHS = 10  # readable text needs a second


def check_segment_layout(caption: T2VCaption) -> Iterator[Finding]:
    """T1: one to six contiguous segments from 0 to 10 s; otherwise sorted and laid on the default grid."""
    segments = caption.dynamic_layer.timeline_segments
    if not 1 <= len(segments) <= MAX_SEGMENTS:
        yield fatal("T1", f"timeline_segments has {len(segments)} entries, needs 1 to {MAX_SEGMENTS}")
        return
    spans = [parse_span(segment.segment_basic_info.timestamp_range) for segment in segments]
    known = [span for span in spans if span is not None]
    if len(known) == len(spans) and _tile_the_clip(known):
        for segment, span in zip(segments, known, strict=True):
            if segment.segment_basic_info.timestamp_range != format_span(span):
                segment.segment_basic_info.timestamp_range = format_span(span)
                yield repaired("T1", f"timestamp_range rewritten as {format_span(span)}")
        return
    pairs = list(zip(segments, spans, strict=True))
    if len(known) == len(spans):
        pairs.sort(key=lambda pair: pair[1] or (0, 0))
    for (segment, old), new in zip(pairs, default_spans(len(pairs)), strict=True):
        segment.segment_basic_info.timestamp_range = format_span(new)
        if old is not None and old[0] < old[1]:
            _move_times(segment, old, new)
    caption.dynamic_layer.timeline_segments = [segment for segment, _ in pairs]
    yield repaired("T1", "segments do not tile 00:00.0-00:10.0; laid on the default grid")


def check_times_inside(caption: T2VCaption) -> Iterator[Finding]:
    """T2, T3, T13: spans and instants are well formed, lie in their segment, and text is readable for a second."""
    for number, segment in enumerate(caption.dynamic_layer.timeline_segments, start=1):
        outer = _segment_span(segment)
        for item, name in _timed_items(segment):
            written = str(getattr(item, name))
            if isinstance(item, SpecialAudioEvent):
                fitted, rule = _fit_instant(written, outer)
            else:
                least = _READABLE_TENTHS if isinstance(item, TextRender) else 1
                fitted, rule = _fit_span(written, outer, least)
            if fitted != written:
                setattr(item, name, fitted)
                yield repaired(rule, f"segment {number}: a {name} was set to {fitted}")


def check_metadata(caption: T2VCaption, aspect_ratio: str) -> Iterator[Finding]:
    """T4, T5: the duration is 10.0 and the aspect ratio is the job's."""
    metadata = caption.global_layer.video_metadata
    if metadata.duration != CLIP_TENTHS / 10:
        yield repaired("T4", f"duration {metadata.duration:g} set to 10.0")
        metadata.duration = CLIP_TENTHS / 10
    if metadata.aspect_ratio != aspect_ratio:
        yield repaired("T5", f"aspect_ratio set to {aspect_ratio}, the ratio of the job")
        metadata.aspect_ratio = aspect_ratio


def _tile_the_clip(spans: list[Span]) -> bool:
    edges = [0, *(end for _, end in spans)]
    starts = [start for start, _ in spans]
    return edges[:-1] == starts and edges[-1] == CLIP_TENTHS and all(start < end for start, end in spans)


def _segment_span(segment: TimelineSegment) -> Span:
    span = parse_span(segment.segment_basic_info.timestamp_range)
    assert span is not None, "the segment layout is checked first"
    return span


def _timed_items(segment: TimelineSegment) -> Iterator[tuple[BaseModel, str]]:
    for item in (*segment.objects, *segment.alive_subjects, *segment.text_render, *segment.audio.dialogue_lines):
        yield item, "timestamp"
    for event in (*segment.causal_events, *segment.audio.ambience_deltas):
        yield event, "timestamp_range"
    for sound in segment.audio.special_audio_events:
        yield sound, "timestamp"


def _fit_span(written: str, outer: Span, least: int) -> tuple[str, str]:
    span = parse_span(written)
    if span is None or span[0] >= span[1]:
        return format_span(outer), "T3"
    start, end = max(span[0], outer[0]), min(span[1], outer[1])
    if start >= end:
        return format_span(outer), "T2"
    rule = "T2"
    if end - start < least:
        rule = "T13"
        end = min(start + least, outer[1])
        start = max(end - least, outer[0])
    return format_span((start, end)), rule


def _fit_instant(written: str, outer: Span) -> tuple[str, str]:
    span = parse_span(written)
    instant = span[0] if span else parse_instant(written)
    if instant is None:
        return format_instant(outer[0]), "T2"
    return format_instant(min(max(instant, outer[0]), outer[1])), "T2"


def _move_times(segment: TimelineSegment, old: Span, new: Span) -> None:
    """Carry times that lay in the segment's old span to the same relative place in its new one."""

    def moved(tenths: int) -> int:
        return new[0] + round((tenths - old[0]) * (new[1] - new[0]) / (old[1] - old[0]))

    for item, name in _timed_items(segment):
        written = str(getattr(item, name))
        span, instant = parse_span(written), parse_instant(written)
        if span is not None and old[0] <= span[0] < span[1] <= old[1]:
            setattr(item, name, format_span((moved(span[0]), moved(span[1]))))
        elif instant is not None and old[0] <= instant <= old[1]:
            setattr(item, name, format_instant(moved(instant)))
