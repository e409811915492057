"""Check a decoded caption against its schema and the rules of its task, and mend what is mechanical."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError

from magi2.prompts import rules_i2v, rules_t2v_links, rules_t2v_time
from magi2.prompts.decode import Task
from magi2.prompts.findings import Finding, RuleContext, fatal, repaired
from magi2.prompts.schema_i2v import I2VCaption
from magi2.prompts.schema_t2v import T2VCaption
from magi2.prompts.wire import Completion, Schema, validation_problems, wire_schema

MODELS: dict[Task, type[BaseModel]] = {"t2v": T2VCaption, "i2v": I2VCaption}
SCHEMA_NAMES: dict[Task, str] = {"t2v": "T2VEnhanceResult", "i2v": "I2VEnhanceResult"}

# Members that the instructions let a model leave out; their absence breaks nothing.
_OPTIONAL = ("visual_effects", "lens_focal_length", "lighting_delta", "visible_condition", "physics")


@dataclass(frozen=True)
class CheckedCaption:
    """A caption in wire shape after repair, and every rule that it had broken. `data` is None when it is unusable."""

    data: dict[str, Any] | None
    findings: tuple[Finding, ...]


@cache
def schema_of(task: Task) -> Schema:
    """The wire schema of the task; treat it as read-only."""
    return wire_schema(MODELS[task])


def response_format(task: Task) -> dict[str, Any]:
    """The `response_format` member of a chat completion request for this task."""
    return {
        "type": "json_schema",
        "json_schema": {"name": SCHEMA_NAMES[task], "schema": schema_of(task), "strict": True},
    }


def check_caption(decoded: dict[str, Any], task: Task, context: RuleContext) -> CheckedCaption:
    """Bring a decoded object to the wire shape, validate it, and apply the rules of the task.

    Absent members become blank, unknown ones go, and rules with a mechanical repair are mended; each of these is a
    finding. A wrong type or a hollow caption leaves no data.
    """
    completion = Completion()
    shaped = completion.complete(decoded, schema_of(task))
    findings = list(_shape_findings(completion))
    try:
        caption = MODELS[task].model_validate(shaped)
    except ValidationError as error:
        return CheckedCaption(None, (*findings, *(fatal("shape", line) for line in validation_problems(error))))
    rules = _t2v_rules(caption, context) if isinstance(caption, T2VCaption) else _i2v_rules(caption, context)
    findings += rules
    if any(finding.outcome == "fatal" for finding in findings):
        return CheckedCaption(None, tuple(findings))
    return CheckedCaption(caption.model_dump(), tuple(findings))


def _t2v_rules(caption: T2VCaption, context: RuleContext) -> Iterator[Finding]:
    layout = list(rules_t2v_time.check_segment_layout(caption))
    yield from layout
    if any(finding.outcome == "fatal" for finding in layout):
        return
    silent = [
        number
        for number, segment in enumerate(caption.dynamic_layer.timeline_segments, start=1)
        if not segment.segment_basic_info.segment_description.strip()
    ]
    if silent:
        yield fatal("T1", f"segment_description is blank in segment {', '.join(map(str, silent))}")
        return
    yield from rules_t2v_time.check_metadata(caption, context.aspect_ratio)
    yield from rules_t2v_links.drop_invented_words(caption, context.prompt)
    yield from rules_t2v_time.check_times_inside(caption)
    yield from rules_t2v_links.link_entities(caption)
    yield from rules_t2v_links.number_entities(caption)
    yield from rules_t2v_links.number_events(caption)
    yield from rules_t2v_links.check_speakers(caption)
    yield from rules_t2v_links.check_counts(caption)
    yield from rules_t2v_links.check_descriptions(caption)


def _i2v_rules(caption: BaseModel, context: RuleContext) -> Iterator[Finding]:
    assert isinstance(caption, I2VCaption)
    entries = list(rules_i2v.check_entries(caption))
    yield from entries
    if any(finding.outcome == "fatal" for finding in entries):
        return
    yield from rules_i2v.check_handles(caption)
    yield from rules_i2v.check_ranges(caption)
    yield from rules_i2v.check_shots(caption)
    yield from rules_i2v.check_references(caption)
    yield from rules_i2v.check_shot_sounds(caption)
    yield from rules_i2v.check_spoken_words(caption, context.prompt)
    yield from rules_i2v.check_visible_text(caption)
    yield from rules_i2v.check_opening(caption)


def _shape_findings(completion: Completion) -> Iterator[Finding]:
    filled = [place for place in completion.filled if place.rsplit(".", 1)[-1] not in _OPTIONAL]
    for what, places in (
        ("absent members filled with blanks", filled),
        ("unknown members dropped", completion.dropped),
        ("counts made whole or text made encodable", completion.coerced),
    ):
        if places:
            rest = f" and {len(places) - 3} more" if len(places) > 3 else ""
            yield repaired("shape", f"{what}: {', '.join(places[:3])}{rest}")
