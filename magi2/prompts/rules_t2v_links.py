"""Rules that tie a text-to-video caption together: identifiers, speakers, counts and the words the user gave."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pydantic import BaseModel

from magi2.prompts.findings import Finding, repaired, reported
from magi2.prompts.languages import spoken_language
from magi2.prompts.schema_t2v import DialogueLine, StaticObject, StaticSubject, T2VCaption, TextRender, VisualAttributes
from magi2.prompts.traceable import speech_is_traceable, text_is_traceable

MAX_ENTITIES = 10
NARRATOR = "Narrator"

_MENTION = re.compile(r"<(?:subject|object) [0-9]+>")
_EVENT = re.compile(r"\bevent [0-9]+\b")
_LOOSE_ID = re.compile(r"<?\s*(subject|object)[\s_]*([0-9]+)\s*>?", re.IGNORECASE)
_SUBJECT_ID = re.compile(r"<subject [1-9][0-9]*>")
_ID_FIELDS = ("subject_id", "object_id", "speaker", "event_id")


def drop_invented_words(caption: T2VCaption, prompt: str | None) -> Iterator[Finding]:
    """T16: speech and readable text that the user neither gave nor asked for go; so do entries without words."""
    for number, segment in enumerate(caption.dynamic_layer.timeline_segments, start=1):
        lines = [line for line in segment.audio.dialogue_lines if _keep(line.text, prompt, speech_is_traceable)]
        texts = [entry for entry in segment.text_render if _keep(entry.text, prompt, text_is_traceable)]
        for what, before, after in (
            ("dialogue line", len(segment.audio.dialogue_lines), len(lines)),
            ("text entry", len(segment.text_render), len(texts)),
        ):
            if before != after:
                yield repaired("T16", f"segment {number}: {before - after} {what}(s) not from the prompt dropped")
        segment.audio.dialogue_lines, segment.text_render = lines, texts


def _keep(words: str, prompt: str | None, is_traceable: Callable[[str, str], bool]) -> bool:
    return bool(words.strip()) and (prompt is None or is_traceable(words, prompt))


def link_entities(caption: T2VCaption) -> Iterator[Finding]:
    """T7: every identifier in the timeline stands in the static lists; strangers get a static stub there."""
    scene = caption.global_layer
    subjects = {_loose(entry.subject_id): entry.subject_id for entry in reversed(scene.alive_subjects_static)}
    objects = {_loose(entry.object_id): entry.object_id for entry in reversed(scene.objects_static)}
    for number, segment in enumerate(caption.dynamic_layer.timeline_segments, start=1):
        blanks = sum(not entry.subject_id.strip() for entry in segment.alive_subjects)
        blanks += sum(not entry.object_id.strip() for entry in segment.objects)
        if blanks:
            yield repaired("T7", f"segment {number}: {blanks} entries without an identifier dropped")
        segment.alive_subjects = [entry for entry in segment.alive_subjects if entry.subject_id.strip()]
        segment.objects = [entry for entry in segment.objects if entry.object_id.strip()]
        for subject in segment.alive_subjects:
            yield from _link(subject, "subject_id", subjects, number, partial(_add_subject, caption))
        for item in segment.objects:
            yield from _link(item, "object_id", objects, number, partial(_add_object, caption))
        for line in segment.audio.dialogue_lines:
            if _SUBJECT_ID.fullmatch(_loose(line.speaker)):
                yield from _link(line, "speaker", subjects, number, partial(_add_subject, caption))


def _link(
    item: BaseModel, field: str, known: dict[str, str], number: int, add: Callable[[str], None]
) -> Iterator[Finding]:
    name = str(getattr(item, field))
    loose = _loose(name)
    if loose not in known:
        known[loose] = name
        add(name)
        yield repaired("T7", f"segment {number}: {name[:40]} had no static entry; a stub was added")
    elif known[loose] != name:
        setattr(item, field, known[loose])
        yield repaired("T7", f"segment {number}: {name[:40]} rewritten as {known[loose][:40]}")


def _add_subject(caption: T2VCaption, name: str) -> None:
    attributes = dict.fromkeys(VisualAttributes.model_fields, "")
    caption.global_layer.alive_subjects_static.append(
        StaticSubject(
            subject_id=name,
            description="tracked subject",
            position="",
            orientation="",
            visual_attributes=VisualAttributes(**attributes),
        )
    )


def _add_object(caption: T2VCaption, name: str) -> None:
    blanks = dict.fromkeys(StaticObject.model_fields, "")
    caption.global_layer.objects_static.append(
        StaticObject(**{**blanks, "object_id": name, "description": "tracked object"})
    )


def number_entities(caption: T2VCaption) -> Iterator[Finding]:
    """T6: static identifiers run 1, 2, 3 in order of the list; mentions everywhere follow."""
    scene = caption.global_layer
    subjects: dict[str, str] = {}
    objects: dict[str, str] = {}
    lists: tuple[tuple[str, str, list[Any], dict[str, str]], ...] = (
        ("subject", "subject_id", scene.alive_subjects_static, subjects),
        ("object", "object_id", scene.objects_static, objects),
    )
    for kind, field, entries, mapping in lists:
        for position, entry in enumerate(entries, start=1):
            old, new = str(getattr(entry, field)), f"<{kind} {position}>"
            mapping.setdefault(old, new)
            if old != new:
                setattr(entry, field, new)
                yield repaired("T6", f"{old[:40] or 'a blank identifier'} numbered as {new}")
            if not entry.description.strip():
                entry.description = f"tracked {kind}"
                yield repaired("T6", f"{new} had no description")
    mentions = {**objects, **subjects}
    if any(old != new for old, new in mentions.items()):
        tags = scene.audio_baseline.dialogue.speaker_tags
        scene.audio_baseline.dialogue.speaker_tags = [subjects.get(tag, tag) for tag in tags]
        names = {"subject_id": subjects, "speaker": subjects, "object_id": objects}
        for segment in caption.dynamic_layer.timeline_segments:
            _rewrite(segment, partial(_swap, _MENTION, mentions), names)
        _rewrite(scene, partial(_swap, _MENTION, mentions), {})


def number_events(caption: T2VCaption) -> Iterator[Finding]:
    """T8: events run 1, 2, 3 over the whole caption; mentions in their own segment and the premise follow."""
    total = 0
    everywhere: dict[str, str] = {}
    for number, segment in enumerate(caption.dynamic_layer.timeline_segments, start=1):
        mapping: dict[str, str] = {}
        for event in segment.causal_events:
            total += 1
            old, new = event.event_id, f"event {total}"
            mapping.setdefault(old.strip(), new)
            if old != new:
                event.event_id = new
                yield repaired("T8", f"segment {number}: {old[:40] or 'a blank event'} numbered as {new}")
        _rewrite(segment, partial(_swap, _EVENT, mapping), {})
        everywhere = {**mapping, **everywhere}
    scene = caption.global_layer
    scene.description = _swap(_EVENT, everywhere, scene.description)


def check_speakers(caption: T2VCaption) -> Iterator[Finding]:
    """T9, T10: every speaker has a tag; language and tags are filled exactly when someone speaks."""
    dialogue = caption.global_layer.audio_baseline.dialogue
    lines = [line for segment in caption.dynamic_layer.timeline_segments for line in segment.audio.dialogue_lines]
    if not lines:
        if dialogue.language or dialogue.speaker_tags:
            dialogue.language, dialogue.speaker_tags = "", []
            yield repaired("T10", "nobody speaks; language and speaker_tags cleared")
        return
    tags = list(dict.fromkeys(tag for tag in dialogue.speaker_tags if tag.strip()))
    if tags != dialogue.speaker_tags:
        yield repaired("T9", "blank or repeated speaker_tags dropped")
    for line in lines:
        if not line.speaker.strip():
            line.speaker = NARRATOR
            yield repaired("T9", f"a line without speaker is given to {NARRATOR}")
        if line.speaker not in tags:
            tags.append(line.speaker)
            yield repaired("T9", f"speaker {line.speaker[:40]} added to speaker_tags")
    dialogue.speaker_tags = tags
    if not dialogue.language.strip():
        dialogue.language = spoken_language(" ".join(line.text for line in lines))
        yield repaired("T10", f"language of the speech set to {dialogue.language}")


def check_counts(caption: T2VCaption) -> Iterator[Finding]:
    """T14, T15: counts are at least one; more than ten tracked entities are reported."""
    for number, segment in enumerate(caption.dynamic_layer.timeline_segments, start=1):
        for item, field in (
            *((item, "number_of_objects") for item in segment.objects),
            *((subject, "number_of_subjects") for subject in segment.alive_subjects),
        ):
            if getattr(item, field) < 1:
                setattr(item, field, 1)
                yield repaired("T14", f"segment {number}: a {field} below 1 set to 1")
    total = len(caption.global_layer.objects_static) + len(caption.global_layer.alive_subjects_static)
    if total > MAX_ENTITIES:
        yield reported("T15", f"{total} tracked entities, about {MAX_ENTITIES} are the limit")


def check_descriptions(caption: T2VCaption) -> Iterator[Finding]:
    """T11, T12: a segment's description names its entities and events, and quotes its readable text once."""
    for number, segment in enumerate(caption.dynamic_layer.timeline_segments, start=1):
        info = segment.segment_basic_info
        for words in dict.fromkeys(entry.text for entry in segment.text_render):
            times = info.segment_description.count(words)
            if times == 0:
                info.segment_description += f' The readable text is "{words}".'
                yield repaired("T12", f"segment {number}: readable text added to the description")
            elif times > 1:
                yield reported("T12", f"segment {number}: readable text stands {times} times in the description")
        names = [subject.subject_id for subject in segment.alive_subjects]
        names += [item.object_id for item in segment.objects] + [event.event_id for event in segment.causal_events]
        missing = [name for name in dict.fromkeys(names) if name not in info.segment_description]
        if missing:
            yield reported("T11", f"segment {number}: the description does not name {', '.join(missing)[:120]}")


def _loose(name: str) -> str:
    match = _LOOSE_ID.fullmatch(name.strip())
    return f"<{match[1].lower()} {int(match[2])}>" if match else name.strip()


def _swap(pattern: re.Pattern[str], mapping: dict[str, str], text: str) -> str:
    return pattern.sub(lambda match: mapping.get(match[0], match[0]), text)


def _rewrite(node: Any, edit: Callable[[str], str], names: dict[str, dict[str, str]]) -> None:
    """Apply `edit` to every string below `node` but verbatim words; whole identifiers follow their
    field's `names`."""
    if isinstance(node, list):
        for item in node:
            _rewrite(item, edit, names)
    elif isinstance(node, BaseModel):
        for field in type(node).model_fields:
            value = getattr(node, field)
            if not isinstance(value, str):
                _rewrite(value, edit, names)
            elif field in _ID_FIELDS:
                setattr(node, field, names.get(field, {}).get(value, value))
            elif field != "text" or not isinstance(node, DialogueLine | TextRender):
                setattr(node, field, edit(value))
