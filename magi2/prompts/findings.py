"""What the caption rules report, and what they need to know about the clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["repaired", "reported", "fatal"]


@dataclass(frozen=True)
class Finding:
    """One broken rule. `repaired`: mended in place; `reported`: tolerable; `fatal`: the caption cannot be used."""

    rule: str
    message: str
    outcome: Outcome

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


@dataclass(frozen=True)
class RuleContext:
    """The job that a caption is for.

    `prompt` is what speech and readable text must be traceable to; None when the caption is the user's own.
    """

    aspect_ratio: str
    prompt: str | None


def repaired(rule: str, message: str) -> Finding:
    return Finding(rule, message, "repaired")


def reported(rule: str, message: str) -> Finding:
    return Finding(rule, message, "reported")


def fatal(rule: str, message: str) -> Finding:
    return Finding(rule, message, "fatal")
