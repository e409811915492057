"""From the prompt as written to the caption that is encoded, in one of five modes."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace

from magi2.errors import ConfigError, EnhancementError, ImageError, InfrastructureError, InputError
from magi2.prompts.ask import ask_for_caption, build_messages
from magi2.prompts.caption import Caption
from magi2.prompts.client import CaptionClient, ChatClient, EndpointSettings, Message
from magi2.prompts.compact import compact_prompt
from magi2.prompts.decode import Task
from magi2.prompts.figures import Figure, add_figure_hint, check_figure_mentions
from magi2.prompts.findings import Finding, RuleContext
from magi2.prompts.instructions import CaptionFormat, instruction
from magi2.prompts.offline import structure
from magi2.prompts.semantic import check_caption
from magi2.prompts.structured import recognise, render_caption

logger = logging.getLogger(__name__)

MODES = ("off", "offline", "llm", "llm-then-offline", "llm-strict")

_RATIO = re.compile(r"[1-9][0-9]*(?:\.[0-9]+)?:[1-9][0-9]*(?:\.[0-9]+)?")


def resolve_mode(mode: str, endpoint: EndpointSettings | None) -> str:
    """The mode that "auto" stands for ("llm" with an endpoint, else "off"), or the mode itself.

    Raises: ConfigError for an unknown mode, or one that needs an endpoint when there is none.
    """
    if mode == "auto":
        return "llm" if endpoint is not None else "off"
    if mode not in MODES:
        raise ConfigError(f"unknown enhancement mode {mode[:40]!r}", hint=f"one of auto, {', '.join(MODES)}")
    if mode.startswith("llm") and endpoint is None:
        raise ConfigError(f"enhancement mode {mode} needs an endpoint", hint='configure one or use "off" or "offline"')
    return mode


def enhance(
    prompt: str,
    *,
    images: tuple[Figure, ...] = (),
    mode: str,
    aspect_ratio: str,
    endpoint: EndpointSettings | None = None,
    client: ChatClient | None = None,
    compact_format: CaptionFormat = "markdown",
    variation_seed: str = "",
) -> Caption:
    """The caption of one clip; its text is never blank.

    `off` gives the prompt byte for byte. A prompt that is a caption already is checked and rendered, whatever the
    mode but `off`. `offline` is deterministic. `llm` accepts a reply after mechanical repairs and asks once more when
    that is not enough; `llm-strict` accepts no broken rule; `llm-then-offline` falls back when the endpoint fails or
    declines, which sets `mode_used` to "offline" and `fallback`. `client` replaces the endpoint's own, in tests.
    Raises: InputError (blank or unusable prompt, figure without image), ImageError, ConfigError (settings of the
    endpoint), EnhancementError (no usable caption), InfrastructureError (endpoint unavailable).
    """
    settings = endpoint or (EndpointSettings() if client is not None else None)
    resolved = resolve_mode(mode, settings)
    _check_job(prompt, images, aspect_ratio, blank_is_fine=bool(images) and resolved != "off")
    written = Caption(prompt, mode_requested=resolved, mode_used=resolved)
    if resolved == "off":
        return written
    ready = recognise(prompt, aspect_ratio=aspect_ratio, caption_format=compact_format)
    if ready is not None:
        noted = replace(written, text=ready.text, data=ready.data, findings=("the prompt is a caption already",))
        return _with_findings(noted, ready.findings)
    job = _Job(written, images, aspect_ratio, compact_format, variation_seed)
    if resolved == "offline" or settings is None:
        return _structured(job)
    chat = client or CaptionClient(settings)
    return _asked_or_structured(job, chat, settings) if resolved == "llm-then-offline" else _asked(job, chat, settings)


def foreseen(
    prompt: str,
    *,
    images: tuple[Figure, ...] = (),
    mode: str,
    aspect_ratio: str,
    compact_format: CaptionFormat = "markdown",
) -> Caption | None:
    """What `enhance` will give under a resolved mode, None where a language model will be asked.

    Raises: as that does for a prompt that no model can make good.
    """
    if mode.startswith("llm"):
        if recognise(prompt, aspect_ratio=aspect_ratio, caption_format=compact_format) is None:
            return None
        mode = "offline"  # which passes a caption through as well
    return enhance(prompt, images=images, mode=mode, aspect_ratio=aspect_ratio, compact_format=compact_format)


@dataclass(frozen=True)
class _Job:
    """One clip's request; `written` is the caption to fill in."""

    written: Caption
    images: tuple[Figure, ...]
    aspect_ratio: str
    compact_format: CaptionFormat
    variation_seed: str

    @property
    def task(self) -> Task:
        return "i2v" if self.images else "t2v"


def _asked(job: _Job, chat: ChatClient, settings: EndpointSettings) -> Caption:
    """The language model's caption."""
    answer = ask_for_caption(
        chat,
        settings,
        _messages(job, settings),
        task=job.task,
        context=RuleContext(job.aspect_ratio, job.written.text),
        strict=job.written.mode_used == "llm-strict",
    )
    text = render_caption(answer.data, job.task, job.compact_format)
    caption = replace(job.written, text=text, data=answer.data, usage=answer.usage, model=answer.model)
    return _with_findings(caption, answer.findings)


def _asked_or_structured(job: _Job, chat: ChatClient, settings: EndpointSettings) -> Caption:
    """The language model's caption, or the structurer's when the endpoint fails or declines."""
    try:
        return _asked(job, chat, settings)
    except (ConfigError, ImageError):
        # A wrong key would turn every clip into a fallback, a broken image would fail the clip later: both stay loud.
        raise
    except (EnhancementError, InfrastructureError, InputError) as error:
        logger.warning("enhancement fell back to the offline structurer: %s", error)
        caption = _structured(job)
        findings = (f"fallback: {error}", *caption.findings)
        return replace(caption, mode_used="offline", fallback=True, findings=findings)


def _structured(job: _Job) -> Caption:
    """The deterministic structurer's caption."""
    structured = structure(job.written.text, has_image=bool(job.images), aspect_ratio=job.aspect_ratio)
    checked = check_caption(structured, job.task, RuleContext(job.aspect_ratio, prompt=None))
    if checked.data is None:
        raise InputError("the prompt has nothing that shows", hint="write what the clip shows")
    text = render_caption(checked.data, job.task, job.compact_format)
    return _with_findings(replace(job.written, text=text, data=checked.data), checked.findings)


def _messages(job: _Job, settings: EndpointSettings) -> list[Message]:
    text = instruction(
        job.task,
        job.written.text,
        aspect_ratio=job.aspect_ratio,
        variation_seed=job.variation_seed,
        caption_format=job.compact_format,
    )
    return build_messages(text, job.images, max_image_bytes=settings.max_image_bytes)


def _check_job(prompt: str, images: tuple[Figure, ...], aspect_ratio: str, *, blank_is_fine: bool) -> None:
    try:
        prompt.encode()
        compact_prompt(add_figure_hint(prompt, figures=images)).encode()  # JSON escapes can hide what UTF-8 cannot hold
    except UnicodeEncodeError as error:
        raise InputError(f"the prompt has half a surrogate pair at character {error.start}") from None
    if not _RATIO.fullmatch(aspect_ratio):
        raise InputError(f"aspect ratio {aspect_ratio[:40]!r} is not of the form 16:9")
    if not blank_is_fine and not compact_prompt(prompt).strip():
        raise InputError("the prompt is empty", hint="write what the clip shows")
    check_figure_mentions(prompt, images)


def _with_findings(caption: Caption, findings: tuple[Finding, ...]) -> Caption:
    """The caption with these findings, mended ones listed as repairs."""
    mended = tuple(str(finding) for finding in findings if finding.outcome == "repaired")
    passed = tuple(str(finding) for finding in findings if finding.outcome == "reported")
    return replace(caption, findings=(*caption.findings, *passed), repairs=(*caption.repairs, *mended))
