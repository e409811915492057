"""Ask the language model for a caption, judge the answer, and ask once more when it cannot be used."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from magi2.errors import EnhancementError
from magi2.inputs.files import read_unchanged
from magi2.prompts.client import ChatClient, EndpointSettings, Message, Reply
from magi2.prompts.decode import DecodeError, Task, decode_lenient, parse_json
from magi2.prompts.figures import Figure
from magi2.prompts.findings import Finding, RuleContext, fatal, repaired
from magi2.prompts.image_part import image_part
from magi2.prompts.semantic import check_caption, response_format

logger = logging.getLogger(__name__)

_ATTEMPTS = 2
_MAX_QUOTED_REPLY = 60_000  # characters of a failed reply that are shown to the model again
_MAX_LISTED = 20


@dataclass(frozen=True)
class Answer:
    """A usable caption with every rule that it broke, and what it cost."""

    data: dict[str, Any]
    findings: tuple[Finding, ...]
    usage: dict[str, int]
    model: str


@dataclass
class _Verdict:
    """What one reply was worth. `final` replies are not asked again: the model declined."""

    data: dict[str, Any] | None = None
    findings: list[Finding] = field(default_factory=list)
    final: bool = False

    def is_accepted(self, strict: bool) -> bool:
        return self.data is not None and not (strict and self.findings)


def build_messages(instruction: str, figures: Sequence[Figure], *, max_image_bytes: int) -> list[Message]:
    """One user message: the instruction, then each image; several images are preceded by their token.

    Raises: ImageError.
    """
    content: list[dict[str, Any]] = [{"type": "text", "text": instruction}]
    for figure in figures:
        if len(figures) > 1:
            content.append({"type": "text", "text": f"{figure.mention}:"})
        checked = read_unchanged(Path(figure.source), figure.sha256) if figure.sha256 else figure.source
        content.append(image_part(checked, max_bytes=max_image_bytes))
    return [{"role": "user", "content": content}]


def ask_for_caption(
    chat: ChatClient,
    settings: EndpointSettings,
    messages: list[Message],
    *,
    task: Task,
    context: RuleContext,
    strict: bool,
) -> Answer:
    """The caption of the first or the second reply.

    A reply is usable when it decodes, fits the schema and breaks no rule beyond repair; with `strict`, when it breaks
    no rule at all. The second question names what was wrong with the first reply.
    Raises: EnhancementError when neither is usable or the model declines; what the client raises.
    """
    usage: dict[str, int] = {}
    question = messages
    verdict = _Verdict()
    for attempt in range(1, _ATTEMPTS + 1):
        reply = chat.complete(
            question, model=settings.model, max_tokens=settings.max_tokens, response_format=response_format(task)
        )
        for name, count in reply.usage.items():
            usage[name] = usage.get(name, 0) + count
        verdict = _judge(reply, task, context)
        size, broken = len(reply.text), len(verdict.findings)
        logger.info("caption attempt %d: %s, %d characters, %d findings", attempt, reply.finish_reason, size, broken)
        if verdict.data is not None and verdict.is_accepted(strict):
            return Answer(verdict.data, tuple(verdict.findings), usage, reply.model)
        if verdict.final:
            break
        question = _follow_up(messages, reply, verdict.findings)
    fatal_ones = [finding for finding in verdict.findings if finding.outcome == "fatal"]
    reason = "; ".join(map(str, fatal_ones or verdict.findings))[:200]
    raise EnhancementError(f"{settings.model} gave no usable caption: {reason}")


def _judge(reply: Reply, task: Task, context: RuleContext) -> _Verdict:
    if reply.refusal or reply.finish_reason == "content_filter":
        return _Verdict(findings=[fatal("reply", "the model declined the request")], final=True)
    if reply.finish_reason == "length":
        return _Verdict(findings=[fatal("reply", "the reply was cut off at the token limit; be briefer")])
    if not reply.text.strip():
        return _Verdict(findings=[fatal("reply", "the reply is empty")])
    try:
        decoded, liberties = decode_lenient(reply.text, task)
    except DecodeError as error:
        if _is_declined(reply.text):
            return _Verdict(findings=[fatal("reply", "the model declined the request")], final=True)
        return _Verdict(findings=[fatal(error.kind, str(error))])
    checked = check_caption(decoded, task, context)
    findings = [repaired("json", liberty.removeprefix("json: ")) for liberty in liberties]
    return _Verdict(checked.data, [*findings, *checked.findings])


def _is_declined(text: str) -> bool:
    """Whether the reply is the refusal object that the instruction asks for where an interface has no such field."""
    try:
        value = parse_json(text)
    except ValueError:
        return False
    return isinstance(value, dict) and bool(value.get("refusal"))


def _follow_up(messages: list[Message], reply: Reply, findings: list[Finding]) -> list[Message]:
    """The question again, the failed reply, and what was wrong with it."""
    listed = "\n".join(f"- {finding}" for finding in _worst_first(findings)[:_MAX_LISTED])
    correction = (
        f"That reply cannot be used:\n{listed}\n"
        "Answer again with the whole corrected JSON object and nothing else. The rules above still hold."
    )
    if reply.text.strip() and reply.finish_reason != "length":
        said = {"role": "assistant", "content": reply.text[:_MAX_QUOTED_REPLY]}
        return [*messages, said, {"role": "user", "content": [{"type": "text", "text": correction}]}]
    # Nothing to quote: some servers refuse an empty assistant turn, so the correction joins the first message.
    first = messages[0]
    return [{**first, "content": [*first["content"], {"type": "text", "text": correction}]}]


def _worst_first(findings: list[Finding]) -> list[Finding]:
    order = {"fatal": 0, "repaired": 1, "reported": 2}
    return sorted(findings, key=lambda finding: order[finding.outcome])
