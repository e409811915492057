"""The instruction given to the language model: our templates, filled for one request."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Literal

from magi2.prompts.decode import Task
from magi2.prompts.semantic import response_format, schema_of
from magi2.prompts.wire import Schema, blank

CaptionFormat = Literal["markdown", "json"]

_SLOT = re.compile(r"\{(user_input_text|variation_seed|aspect_ratio|delimiter|shape|echo_rule)\}")

# The compact rendering shows the text encoder only a few members, the Markdown rendering shows them all.
_ECHO_RULES: dict[CaptionFormat, str] = {
    "markdown": (
        "State each fact once, in the member made for it; readable text alone is repeated in its segment_description."
    ),
    "json": (
        "Only part of the caption reaches the renderer in full. Repeat readable text, causes, camera and sound details "
        "once, briefly, in description, segment_description, primary_action, interaction, state_change or "
        "motion_detail."
    ),
}


@cache
def load_template(task: Task) -> str:
    """The instruction template of the task, slots unfilled."""
    return (files("magi2.prompts") / "templates" / f"{task}.txt").read_text(encoding="utf-8")


def template_digest(task: Task, caption_format: CaptionFormat = "markdown") -> str:
    """SHA-256 over all that decides what the model is asked besides the request: template, echo rule, schema."""
    parts = (load_template(task), _ECHO_RULES[caption_format], json.dumps(response_format(task)))
    return sha256("\0".join(parts).encode()).hexdigest()


def fill_template(template: str, slots: Mapping[str, str]) -> str:
    """The template with all its slots filled in a single pass; slot names inside the user's text stay as written."""
    return _SLOT.sub(lambda match: slots[match[1]], template)


def instruction(
    task: Task,
    user_text: str,
    *,
    aspect_ratio: str,
    variation_seed: str = "",
    caption_format: CaptionFormat = "markdown",
) -> str:
    """The whole instruction for one request.

    The user's text stands between markers that it cannot contain: they carry a digest of that text.
    """
    return fill_template(
        load_template(task),
        {
            "user_input_text": user_text,
            "variation_seed": variation_seed,
            "aspect_ratio": aspect_ratio,
            "delimiter": f"REQUEST-{sha256(user_text.encode()).hexdigest()[:16]}",
            "shape": json.dumps(_skeleton(schema_of(task)), indent=1),
            "echo_rule": _ECHO_RULES[caption_format],
        },
    )


def _skeleton(schema: Schema) -> Any:
    if schema["type"] == "object":
        return {name: _skeleton(member) for name, member in schema["properties"].items()}
    if schema["type"] == "array":
        return [0.0, 10.0] if schema["items"]["type"] == "number" else [_skeleton(schema["items"])]
    return blank(schema)
