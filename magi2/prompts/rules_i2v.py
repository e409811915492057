"""Rules of an image-to-video caption: times, handles, and the words the user gave."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from magi2.prompts.findings import Finding, fatal, repaired, reported
from magi2.prompts.schema_i2v import AudioEvent, I2VCaption, Reference, Shot
from magi2.prompts.traceable import speech_is_traceable
from magi2.prompts.words import has_cue

CLIP_SECONDS = 10.0
_MIN_SECONDS = 0.5  # what an empty range is widened to
_OPENING = re.compile(r"still|image|frame|framing|picture|photo|opening|starting", re.IGNORECASE)

STILL_REFERENCE = {
    "reference_identifier": "still",
    "reference_type": "setting",
    "label": "Supplied still",
    "role": "first frame",
    "description": "the supplied image as it stands at the start of the clip",
    "appearance_or_design": "exactly as shown in the supplied image",
}


def check_entries(caption: I2VCaption) -> Iterator[Finding]:
    """I8 and blank captions: at least one reference and one shot, each shot and the clip with words."""
    core = caption.global_caption.core_caption
    spoken = next((shot.shot_caption for shot in caption.shot_timeline if shot.shot_caption.strip()), "")
    if not core.strip() and not spoken:
        yield fatal("I8", "core_caption and every shot_caption are blank")
        return
    if not core.strip():
        caption.global_caption.core_caption = core = spoken
        yield repaired("I8", "blank core_caption taken from the first shot")
    if not caption.reference_bank:
        caption.reference_bank.append(Reference(**STILL_REFERENCE))
        yield repaired("I8", "empty reference_bank: the supplied still was entered")
    if not caption.shot_timeline:
        caption.shot_timeline.append(_whole_shot(core))
        yield repaired("I8", "empty shot_timeline: one shot over the whole clip was entered")
    for shot in caption.shot_timeline:
        if not shot.shot_caption.strip():
            shot.shot_caption = core
            yield repaired("I8", f"blank shot_caption of {shot.shot_identifier[:40]} taken from core_caption")


def check_ranges(caption: I2VCaption) -> Iterator[Finding]:
    """I1: sound and text ranges are two numbers with 0 <= start < end <= 10."""
    timed = [(event, event.audio_event_identifier) for event in caption.audio_event_timeline]
    timed += [(text, text.visible_text_identifier) for text in caption.visible_text]  # type: ignore[misc]
    for item, handle in timed:
        fitted = _fit(item.time_range_seconds)
        if fitted != item.time_range_seconds:
            item.time_range_seconds = fitted
            yield repaired("I1", f"time range of {handle[:40]} set to {fitted}")


def check_shots(caption: I2VCaption) -> Iterator[Finding]:
    """I1, I2: shots cover 0 to 10 s in order without gaps; otherwise each is stretched to its neighbours."""
    shots = caption.shot_timeline
    ranges = [_fit(shot.time_range_seconds) for shot in shots]
    pairs = sorted(zip(ranges, shots, strict=True), key=lambda pair: pair[0])
    starts = [0.0, *(start for (start, _), _ in pairs[1:])]
    if any(later <= earlier for earlier, later in pairwise(starts)):
        pairs = list(zip(ranges, shots, strict=True))
        starts = [round(CLIP_SECONDS * index / len(shots), 3) for index in range(len(shots))]
    if [shot for _, shot in pairs] != shots:
        yield repaired("I2", "shots put in order of time")
    caption.shot_timeline = [shot for _, shot in pairs]
    for shot, start, end in zip(caption.shot_timeline, starts, [*starts[1:], CLIP_SECONDS], strict=True):
        if shot.time_range_seconds != [start, end]:
            yield repaired("I2", f"time range of {shot.shot_identifier[:40]} set to {[start, end]}")
            shot.time_range_seconds = [start, end]


def check_handles(caption: I2VCaption) -> Iterator[Finding]:
    """I3: handles are filled and unique in their list; a repeated one gets a number."""
    lists: tuple[tuple[Iterable[Any], str, str], ...] = (
        (caption.reference_bank, "reference_identifier", "reference"),
        (caption.shot_timeline, "shot_identifier", "shot"),
        (caption.audio_event_timeline, "audio_event_identifier", "sound"),
        (caption.visible_text, "visible_text_identifier", "text"),
    )
    for entries, field, stem in lists:
        taken = {getattr(entry, field) for entry in entries}
        seen: set[str] = set()
        for entry in entries:
            handle = str(getattr(entry, field))
            if handle.strip() and handle not in seen:
                seen.add(handle)
                continue
            base, number = (handle, 2) if handle.strip() else (stem, 1)
            while f"{base}_{number}" in taken:
                number += 1
            setattr(entry, field, f"{base}_{number}")
            taken.add(f"{base}_{number}")
            seen.add(f"{base}_{number}")
            yield repaired("I3", f"{field} {handle[:40]!r} renamed {base[:40]}_{number}")


def check_references(caption: I2VCaption) -> Iterator[Finding]:
    """I4: scene, source and shot handles exist in the reference bank; strangers are dropped."""
    known = {entry.reference_identifier for entry in caption.reference_bank}
    single: tuple[tuple[Iterable[Any], str], ...] = (
        (caption.shot_timeline, "scene_reference_identifier"),
        (caption.audio_event_timeline, "source_reference_identifier"),
        (caption.visible_text, "source_reference_identifier"),
    )
    for entries, field in single:
        for entry in entries:
            handle = getattr(entry, field)
            if handle and handle not in known:
                setattr(entry, field, "")
                yield repaired("I4", f"{field} {handle[:40]!r} is not in the reference bank; dropped")
    for shot in caption.shot_timeline:
        kept = [handle for handle in dict.fromkeys(shot.reference_identifiers) if handle in known]
        if kept != shot.reference_identifiers:
            yield repaired("I4", f"{shot.shot_identifier[:40]}: unknown or repeated reference_identifiers dropped")
            shot.reference_identifiers = kept


def check_shot_sounds(caption: I2VCaption) -> Iterator[Finding]:
    """I5: a shot lists only sounds that exist and overlap it."""
    events = {event.audio_event_identifier: event for event in caption.audio_event_timeline}
    for shot in caption.shot_timeline:
        kept = [
            handle
            for handle in dict.fromkeys(shot.audio_event_identifiers)
            if handle in events and _overlap(shot, events[handle])
        ]
        if kept != shot.audio_event_identifiers:
            yield repaired("I5", f"{shot.shot_identifier[:40]}: sounds that do not exist or overlap dropped")
            shot.audio_event_identifiers = kept


def check_spoken_words(caption: I2VCaption, prompt: str | None) -> Iterator[Finding]:
    """I6: only speech has words, and they come from the user."""
    for event in caption.audio_event_timeline:
        if not event.spoken_text:
            continue
        is_speech = has_cue("speech_events", event.event_type) or has_cue("speech", event.event_type)
        if (
            is_speech
            and event.spoken_text.strip()
            and (prompt is None or speech_is_traceable(event.spoken_text, prompt))
        ):
            continue
        event.spoken_text = ""
        yield repaired("I6", f"{event.audio_event_identifier[:40]}: words that are no speech of the prompt cleared")


def check_visible_text(caption: I2VCaption) -> Iterator[Finding]:
    """I7: readable text is locked by a continuity requirement that quotes it; entries without text go."""
    kept = [entry for entry in caption.visible_text if entry.text.strip()]
    if len(kept) < len(caption.visible_text):
        yield repaired("I7", "visible_text entries without text dropped")
        caption.visible_text = kept
    locks = "\n".join(caption.global_caption.continuity_requirements)
    for entry in kept:
        if entry.text.strip() not in locks:
            yield reported("I7", f"{entry.visible_text_identifier[:40]}: no continuity requirement quotes this text")


def check_opening(caption: I2VCaption) -> Iterator[Finding]:
    """I9: the first shot says that it opens on the still as framed."""
    first = caption.shot_timeline[0]
    if not _OPENING.search(first.camera_lighting_and_composition + first.shot_caption):
        yield reported("I9", "the first shot does not say that it opens on the still")


def _fit(seconds: list[float]) -> list[float]:
    if len(seconds) < 2 or not all(map(math.isfinite, seconds[:2])):
        return [0.0, CLIP_SECONDS]
    start, end = sorted(min(max(value, 0.0), CLIP_SECONDS) for value in seconds[:2])
    if start == end:
        end = min(start + _MIN_SECONDS, CLIP_SECONDS)
        start = max(end - _MIN_SECONDS, 0.0)
    return [start, end]


def _overlap(shot: Shot, event: AudioEvent) -> bool:
    (shot_start, shot_end), (start, end) = shot.time_range_seconds, event.time_range_seconds
    return start < shot_end and shot_start < end


def _whole_shot(core: str) -> Shot:
    return Shot(
        shot_identifier="shot_1",
        time_range_seconds=[0.0, CLIP_SECONDS],
        scene_reference_identifier="",
        shot_caption=core,
        camera_lighting_and_composition="opens on the supplied still exactly as framed",
        motion_and_physical_logic="",
        reference_identifiers=[],
        audio_event_identifiers=[],
    )
