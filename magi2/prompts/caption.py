"""The result of prompt enhancement, as the stage stores it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

from magi2.errors import CorruptedArtifactError

GIVEN = "given"
"""The mode of a caption that came with its clip."""


@dataclass(frozen=True)
class Caption:
    """A prompt ready for the figure hint and the text encoder, and how it came about.

    `text` is never blank. `data` is the structured caption, None when the prompt is used as written. `mode_used` is
    the mode whose recipe the caption belongs to: "offline" after a fallback, with `fallback` set. `findings` are
    broken rules that were let pass and the reason of a fallback; `repairs` are those that were mended. `usage` counts
    tokens over all questions, `model` is the name that the endpoint answered under.
    """

    text: str
    data: Mapping[str, Any] | None = None
    mode_requested: str = "off"
    mode_used: str = "off"
    fallback: bool = False
    findings: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    usage: Mapping[str, int] = field(default_factory=dict)
    model: str | None = None

    def to_json(self) -> bytes:
        """UTF-8 JSON, the same bytes for the same caption; order inside `data` is kept."""
        members = {member.name: getattr(self, member.name) for member in fields(self)}
        return (json.dumps(members, ensure_ascii=False, indent=1, default=dict) + "\n").encode()

    @classmethod
    def from_json(cls, content: bytes) -> Caption:
        """The caption that `to_json` wrote; raises CorruptedArtifactError for anything else."""
        try:
            members = json.loads(content)
            if set(members) != {member.name for member in fields(cls)}:
                raise ValueError("members differ")
            return _ADAPTER.validate_python(members)
        except (ValueError, TypeError, RecursionError, ValidationError):
            raise CorruptedArtifactError("the stored caption is not what the enhance stage writes") from None


_ADAPTER = TypeAdapter(Caption)
