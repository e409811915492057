"""Render a prompt that is itself a JSON caption as the compact text the text encoder was trained with.

Only text-to-video captions (a `global_layer` object) are rendered; every other prompt is used as written.
Source: MAGI-2 preview inference code, text encoder prompt normalisation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from magi2.errors import InputError
from magi2.prompts.decode import parse_json

_ATTRIBUTES = ("gender", "age_group", "ethnicity", "clothing", "appearance_details")


def compact_prompt(prompt: str) -> str:
    """The text that the tokenizer gets: compact lines for a JSON caption, otherwise `prompt` unchanged.

    A scalar where a list of subjects, objects or dialogue lines belongs counts as absent.
    Raises: InputError if the caption is nested too deeply to walk.
    """
    try:
        caption = parse_json(prompt)
    except ValueError:
        return prompt
    try:
        caption = _drop_empty(caption)
    except RecursionError:
        raise InputError("the JSON prompt is nested too deeply to render", hint="flatten it") from None
    if not isinstance(caption, dict) or "global_layer" not in caption:
        return prompt
    return "\n".join(line for line in _lines(caption) if line.strip())


def _lines(caption: dict[str, Any]) -> Iterator[str]:
    scene = _object(caption, "global_layer")
    yield from _premise(scene)
    yield from _look(scene)
    yield from _sound(_object(scene, "audio_baseline"))
    if subjects := _array(scene, "alive_subjects_static"):
        yield "subjects:"
        yield from (_subject_row(subject) for subject in subjects if isinstance(subject, dict))
    if objects := _array(scene, "objects_static"):
        yield "objects:"
        yield from (_object_row(item) for item in objects if isinstance(item, dict))
    if segments := _array(_object(caption, "dynamic_layer"), "timeline_segments"):
        yield "timeline:"
        for segment in segments:
            if isinstance(segment, dict):
                yield from _segment_rows(segment)
    yield from map(str, _array(caption, "reference_layer"))


def _premise(scene: dict[str, Any]) -> Iterator[str]:
    context, description = _flat(scene, "context"), _flat(scene, "description")
    if context or description:
        yield f"context: {context}" if context else "context"
        yield description


def _look(scene: dict[str, Any]) -> Iterator[str]:
    aesthetics = _object(scene, "aesthetics")
    names = {"style": "style", "mood": "mood_atmosphere", "color": "color_scheme"}
    if shown := [f"{name}={text}" for name, key in names.items() if (text := _flat(aesthetics, key))]:
        yield "aesthetics: " + "; ".join(shown)


def _sound(audio: dict[str, Any]) -> Iterator[str]:
    dialogue = _object(audio, "dialogue")
    tags = _tags(dialogue)
    values = {
        "language": _flat(dialogue, "language"),
        "speakers": ",".join(map(_flat_text, tags)),
        "ambience": _flat(audio, "ambience"),
    }
    # As published, that there are tags decides, not what they say: a blank one leaves `speakers=`.
    if shown := [f"{name}={text}" for name, text in values.items() if text or (name == "speakers" and tags)]:
        yield "audio: " + "; ".join(shown)


def _subject_row(subject: dict[str, Any]) -> str:
    attributes = _object(subject, "visual_attributes")
    row = " - " + " | ".join(_present(subject, "subject_id", "description"))
    if place := _present(subject, "position", "orientation"):
        row += f" ({'; '.join(place)})"
    if shown := [f"{key}={text}" for key in _ATTRIBUTES if (text := _flat(attributes, key))]:
        row += " :: " + "; ".join(shown)
    return row


def _object_row(item: dict[str, Any]) -> str:
    row = " - " + " | ".join(_present(item, "object_id", "description"))
    if shown := _present(item, "shape_and_color", "position"):
        row += " :: " + "; ".join(shown)
    return row


def _segment_rows(segment: dict[str, Any]) -> Iterator[str]:
    info = _object(segment, "segment_basic_info")
    yield " ".join([" -", *_present(info, "timestamp_range", "segment_description")])
    for line in _objects(_object(segment, "audio"), "dialogue_lines"):
        if text := _flat(line, "text"):
            speaker, timestamp = _flat(line, "speaker"), _flat(line, "timestamp")
            head = f"dialogue {speaker}" if speaker else "dialogue"
            yield f"   - {head}: {text}" + (f" ({timestamp})" if timestamp else "")
    for subject in _objects(segment, "alive_subjects"):
        if acts := _present(_object(subject, "action"), "primary_action", "interaction", "facial_expression"):
            yield f"   - action {_flat(subject, 'subject_id')}: " + "; ".join(acts)
    for item in _objects(segment, "objects"):
        if changes := _present(_object(item, "dynamic_state"), "state_change", "motion_detail"):
            yield f"   - objects {_flat(item, 'object_id')}: " + "; ".join(changes)


def _drop_empty(value: Any) -> Any:
    if isinstance(value, dict):
        members = ((key, _drop_empty(member)) for key, member in value.items())
        return {key: member for key, member in members if not _is_empty(member)}
    if isinstance(value, list):
        return [_drop_empty(item) for item in value if item is not None]
    return value


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, dict | list) and not value)


def _object(parent: dict[str, Any], key: str) -> dict[str, Any]:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def _array(parent: dict[str, Any], key: str) -> list[Any]:
    value = parent.get(key)
    return value if isinstance(value, list) else []


def _objects(parent: dict[str, Any], key: str) -> list[dict[str, Any]]:
    return [item for item in _array(parent, key) if isinstance(item, dict)]


def _tags(dialogue: dict[str, Any]) -> list[Any]:
    value = dialogue.get("speaker_tags")
    if isinstance(value, list):
        return value
    return [] if isinstance(value, dict) or not _flat_text(value) else [value]


def _present(parent: dict[str, Any], *keys: str) -> list[str]:
    return [text for key in keys if (text := _flat(parent, key))]


def _flat(parent: dict[str, Any], key: str) -> str:
    return _flat_text(parent.get(key))


def _flat_text(value: Any) -> str:
    return "" if value is None else " ".join(str(value).split())
