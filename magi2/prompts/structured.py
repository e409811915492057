"""Prompts that are captions already: recognised, checked, and never sent to a language model again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from magi2.errors import InputError
from magi2.prompts.decode import ROOT_KEYS, Task, parse_json
from magi2.prompts.findings import Finding, RuleContext
from magi2.prompts.instructions import CaptionFormat
from magi2.prompts.markdown import render_markdown
from magi2.prompts.semantic import check_caption, schema_of
from magi2.prompts.wire import Completion

_MARKDOWN_STARTS = ("# global_layer", "# global_caption")
_EXTRA = "reference_layer"  # a hand-written caption may name its figures there


@dataclass(frozen=True)
class StructuredPrompt:
    """A prompt that is a caption: its text, and its data when it was JSON."""

    text: str
    data: dict[str, Any] | None
    findings: tuple[Finding, ...] = ()


def recognise(prompt: str, *, aspect_ratio: str, caption_format: CaptionFormat) -> StructuredPrompt | None:
    """The prompt as a checked caption when it is one, else None.

    Rendered Markdown and compact text are passed through unchanged. A JSON caption of either shape is completed,
    repaired and rendered.
    Raises: InputError if a JSON caption has a wrong type, an unknown member (dropping it would lose the user's
    words) or no content.
    """
    lines = prompt.strip().splitlines()
    if lines and (lines[0].rstrip() in _MARKDOWN_STARTS or _is_compact(lines)):
        return StructuredPrompt(prompt, None)
    try:
        value = parse_json(prompt)
    except ValueError:
        return None
    task = _shape_of(value)
    if task is None:
        return None
    extra = _figure_lines(value)
    value = {key: member for key, member in value.items() if key != _EXTRA}
    _refuse_unknown(value, task)
    checked = check_caption(value, task, RuleContext(aspect_ratio, prompt=None))
    if checked.data is None:
        reasons = [str(finding) for finding in checked.findings if finding.outcome == "fatal"]
        raise InputError(f"the prompt is a caption that cannot be used: {'; '.join(reasons)[:300]}")
    data = {**checked.data, **extra}
    return StructuredPrompt(render_caption(data, task, caption_format), data, checked.findings)


def _is_compact(lines: list[str]) -> bool:
    """Whether these lines are what `compact_prompt` makes of a caption with a premise and a timeline."""
    has_premise = lines[0].rstrip() == "context" or lines[0].startswith("context: ")
    return has_premise and "timeline:" in map(str.rstrip, lines[1:])


def render_caption(data: dict[str, Any], task: Task, caption_format: CaptionFormat) -> str:
    """The caption as the text that goes on: Markdown, or JSON for the compact rendering.

    The compact rendering exists for the text-to-video shape only; the other shape is Markdown in either format.
    """
    if caption_format == "json" and task == "t2v":
        return json.dumps(data, ensure_ascii=False)
    return render_markdown(data)


def _shape_of(value: Any) -> Task | None:
    if not isinstance(value, dict):
        return None
    return next((task for task, keys in ROOT_KEYS.items() if all(key in value for key in keys)), None)


def _figure_lines(value: dict[str, Any]) -> dict[str, list[str]]:
    lines = value.get(_EXTRA) or []
    lines = [lines] if isinstance(lines, str) else lines
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise InputError(f"the prompt is a caption whose {_EXTRA} is no list of sentences")
    return {_EXTRA: lines} if lines else {}


def _refuse_unknown(value: dict[str, Any], task: Task) -> None:
    completion = Completion()
    completion.complete(value, schema_of(task))
    unknown = [place for place in completion.dropped if not place.endswith("[null]")]
    if unknown:
        raise InputError(
            f"the prompt is a caption with an unknown member {unknown[0]}",
            hint='correct the name, or use mode "off" to send the prompt as written',
        )
