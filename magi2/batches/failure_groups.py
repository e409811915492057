"""Failures that are alike: of the same stage and error code, whatever the numbers in their messages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

FIRST_CLIPS = 4
"""So many clips of a group are named."""
_NUMBER = re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{8,}\b|\d+(?:[.,]\d+)*")


@dataclass(frozen=True)
class Failure:
    """A clip, or a refused row, that failed."""

    clip: str
    stage: str | None
    code: str | None
    reason: str | None


@dataclass
class FailureGroup:
    """Failures in one stage with one error code: how many, the message of the first, and the first clips."""

    stage: str | None
    code: str | None
    example: str | None
    count: int = 0
    clips: list[str] = field(default_factory=list)

    @property
    def first(self) -> str:
        """The first clips, for people."""
        return ", ".join(clip[:12] for clip in self.clips)

    def __str__(self) -> str:
        what = f"{self.code or 'no code'}: {self.example or 'no reason'}"
        return f"{self.count} in {self.stage or 'no stage'}, {what}"

    def to_json(self) -> dict[str, Any]:
        """The group as JSON values."""
        return {name: getattr(self, name) for name in ("stage", "code", "count", "example", "clips")}


def group_failures(failures: Iterable[Failure]) -> list[FailureGroup]:
    """The groups, the largest first; equally large ones in the order in which they are met."""
    groups: dict[tuple[str | None, str | None], FailureGroup] = {}
    for each in failures:
        example = None if each.reason is None else masked(each.reason)
        group = groups.setdefault((each.stage, each.code), FailureGroup(each.stage, each.code, example))
        group.count += 1
        if len(group.clips) < FIRST_CLIPS:
            group.clips.append(each.clip)
    return sorted(groups.values(), key=lambda group: -group.count)


def masked(text: str) -> str:
    """The text with `#` for every number and hexadecimal id, by which messages of one kind differ."""
    return _NUMBER.sub("#", text)
