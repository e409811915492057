"""Assemble a caption from the pieces of a prompt: same prompt, same bytes, nothing lost, nothing invented."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from magi2.prompts.clock import CLIP_TENTHS, Span, format_span, spread
from magi2.prompts.languages import spoken_language
from magi2.prompts.offline.entities import Subject, find_subjects, is_mentioned
from magi2.prompts.offline.quotes import Quotation, find_quotations
from magi2.prompts.offline.text import figure_ranges, hide, normalise, one_line
from magi2.prompts.offline.units import Unit, split_units
from magi2.prompts.rules_i2v import STILL_REFERENCE
from magi2.prompts.rules_t2v_links import NARRATOR
from magi2.prompts.semantic import schema_of
from magi2.prompts.wire import blank
from magi2.prompts.words import field_match, field_value

STRUCTURER_VERSION = 2  # raise when the same prompt gives another caption

Caption = dict[str, Any]

_QUIET_SHOT = "Gentle ambient motion in the scene of the supplied still."
_OPENS_ON_STILL = "opens on the supplied still exactly as framed"
_CONTINUITY = (
    "identities, faces and clothing stay as in the supplied still",
    "background architecture and layout stay as in the supplied still",
    "limbs and rigid shapes keep their proportions without deformation",
)
_REQUIREMENTS = (
    "open on the supplied still without reframing",
    "keep exposure, palette and style of the still",
    "every motion has a start, a middle and an end",
)
_CAMERA_REACH = 40  # characters around a camera word in which its direction and pace are looked for


@dataclass(frozen=True)
class _Reading:
    """What was read out of the prompt; `masked` hides quotations and figure tokens from word matching."""

    text: str
    masked: str
    units: list[Unit]
    has_cuts: bool
    quotations: list[Quotation]
    subjects: list[Subject]

    def quoted(self, kind: str, unit: Unit) -> list[str]:
        return [q.words for q in self.quotations if q.kind == kind and unit.start <= q.start < unit.end]

    def words(self, unit: Unit) -> str:
        return one_line(self.text[unit.start : unit.end])


def structure(prompt: str, *, has_image: bool, aspect_ratio: str) -> Caption:
    """A caption of the image-to-video shape when there is an image, else of the text-to-video shape.

    The description holds the whole prompt and each segment its own clause, in the user's words and language. A blank
    prompt with an image becomes one quiet shot; without an image its segments are blank, which validation refuses.
    """
    text = normalise(prompt)
    quotations = find_quotations(text)
    hidden = hide(text, [(quotation.start, quotation.end) for quotation in quotations])
    units, has_cuts = split_units(text, hidden)
    masked = hide(hidden, figure_ranges(text))
    reading = _Reading(text, masked, units, has_cuts, quotations, find_subjects(masked))
    return _i2v(reading) if has_image else _t2v(reading, aspect_ratio)


def _t2v(reading: _Reading, aspect_ratio: str) -> Caption:
    caption: Caption = blank(schema_of("t2v"))
    scene, masked = caption["global_layer"], reading.masked
    scene["description"] = one_line(reading.text)
    scene["aesthetics"]["style"] = field_value("style", masked)
    scene["aesthetics"]["color_scheme"] = field_value("palette", masked)
    scene["aesthetics"]["mood_atmosphere"] = field_value("mood", masked)
    scene["video_metadata"]["aspect_ratio"] = aspect_ratio
    scene["lighting_baseline"]["conditions"] = _joined(field_value("light", masked), field_value("time_of_day", masked))
    scene["environment_baseline"]["background_setting"] = field_value("weather", masked)
    scene["camera_cinematography"]["lens_focal_length"] = field_value("lens", masked)
    scene["audio_baseline"]["ambience"] = field_value("ambience", masked)
    for number, subject in enumerate(reading.subjects, start=1):
        entry = blank(schema_of("t2v")["properties"]["global_layer"]["properties"]["alive_subjects_static"]["items"])
        scene["alive_subjects_static"].append({**entry, "subject_id": _id(number), "description": subject.phrase})
    caption["dynamic_layer"]["timeline_segments"] = [_segment(reading, unit) for unit in reading.units]
    spoken = [quotation.words for quotation in reading.quotations if quotation.kind == "speech"]
    if spoken:
        dialogue = scene["audio_baseline"]["dialogue"]
        dialogue["language"], dialogue["speaker_tags"] = spoken_language(" ".join(spoken)), [_speaker(reading)]
    return caption


def _segment(reading: _Reading, unit: Unit) -> Caption:
    schema = schema_of("t2v")["properties"]["dynamic_layer"]["properties"]["timeline_segments"]["items"]
    segment: Caption = blank(schema)
    items = {name: member["items"] for name, member in schema["properties"].items() if member["type"] == "array"}
    info, span = segment["segment_basic_info"], format_span(unit.span)
    info["timestamp_range"], info["segment_description"] = span, reading.words(unit)
    info["camera_delta"]["camera_movement"] = _camera(reading.masked[unit.start : unit.end])
    for number, subject in enumerate(reading.subjects, start=1):
        if is_mentioned(subject, reading.masked[unit.start : unit.end]):
            entry = {**blank(items["alive_subjects"]), "subject_id": _id(number), "timestamp": span}
            segment["alive_subjects"].append({**entry, "number_of_subjects": subject.count})
    for words in dict.fromkeys(reading.quoted("text", unit)):
        segment["text_render"].append({**blank(items["text_render"]), "text": words, "timestamp": span})
    lines = reading.quoted("speech", unit)
    segment["audio"]["dialogue_lines"] = [
        {"timestamp": format_span(slot), "speaker": _speaker(reading), "text": words, "delivery": ""}
        for slot, words in zip(spread(unit.span, len(lines)), lines, strict=True)
    ]
    return segment


def _i2v(reading: _Reading) -> Caption:
    caption: Caption = blank(schema_of("i2v"))
    core, masked = caption["global_caption"], reading.masked
    core["core_caption"] = one_line(reading.text) or _QUIET_SHOT
    look = (field_value(name, masked) for name in ("style", "mood", "palette", "light", "time_of_day", "weather"))
    core["visual_design"] = _joined(*look)
    core["audio_design"] = field_value("ambience", masked)
    texts = dict.fromkeys(quotation.words for quotation in reading.quotations if quotation.kind == "text")
    core["continuity_requirements"] = [
        *_CONTINUITY,
        *(f'the text "{words}" stays sharp and unchanged' for words in texts),
    ]
    caption["reference_bank"] = [dict(STILL_REFERENCE)]
    caption["generation_requirements"] = list(_REQUIREMENTS)
    whole = Unit(0, len(reading.text), (0, CLIP_TENTHS))
    for unit in reading.units if reading.has_cuts else [whole]:
        _add_shot(caption, reading, unit)
    return caption


def _add_shot(caption: Caption, reading: _Reading, unit: Unit) -> None:
    number = len(caption["shot_timeline"]) + 1
    sounds = []
    lines = reading.quoted("speech", unit)
    for slot, words in zip(spread(unit.span, len(lines)), lines, strict=True):
        handle = f"speech_{len(caption['audio_event_timeline']) + 1}"
        event = blank(schema_of("i2v")["properties"]["audio_event_timeline"]["items"])
        event |= {"audio_event_identifier": handle, "event_type": "dialogue", "time_range_seconds": _range(slot)}
        caption["audio_event_timeline"].append({**event, "audio_caption": "a spoken line", "spoken_text": words})
        sounds.append(handle)
    for words in dict.fromkeys(reading.quoted("text", unit)):
        handle = f"text_{len(caption['visible_text']) + 1}"
        entry = {"visible_text_identifier": handle, "text": words, "time_range_seconds": _range(unit.span)}
        caption["visible_text"].append(
            {**entry, "position_and_role": "readable on screen", "source_reference_identifier": ""}
        )
    camera = _camera(reading.masked[unit.start : unit.end])
    movement = " ".join(filter(None, (camera["type"], camera["direction"], camera["intensity"])))
    caption["shot_timeline"].append(
        {
            "shot_identifier": f"shot_{number}",
            "time_range_seconds": _range(unit.span),
            "scene_reference_identifier": STILL_REFERENCE["reference_identifier"],
            "shot_caption": reading.words(unit) or _QUIET_SHOT,
            "camera_lighting_and_composition": f"{_OPENS_ON_STILL}; camera {movement}"
            if number == 1
            else f"camera {movement}",
            "motion_and_physical_logic": "",
            "reference_identifiers": [STILL_REFERENCE["reference_identifier"]],
            "audio_event_identifiers": sounds,
        }
    )


def _camera(masked: str) -> dict[str, str]:
    """The camera move named in this stretch of text; static, fixed, steady without one."""
    found = field_match("camera_type", masked)
    if not found or found[0] == "static":
        return {"type": "static", "direction": "fixed", "intensity": "steady"}
    start, end = found[1]
    direction = field_value("camera_direction", masked[start : end + _CAMERA_REACH])
    nearby = masked[max(0, start - _CAMERA_REACH) : end + _CAMERA_REACH]
    return {"type": found[0], "direction": direction, "intensity": field_value("camera_intensity", nearby)}


def _speaker(reading: _Reading) -> str:
    sole = len(reading.subjects) == 1 and reading.subjects[0].count == 1
    return _id(1) if sole else NARRATOR


def _id(number: int) -> str:
    return f"<subject {number}>"


def _range(span: Span) -> list[float]:
    return [span[0] / 10, span[1] / 10]


def _joined(*values: str) -> str:
    return "; ".join(value for value in values if value)
