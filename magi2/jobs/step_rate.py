"""How far and how fast a clip's denoising goes, told by the events of its steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from magi2.runtime.events import Step

PERIOD_S = 5.0
"""The least time between two positions: whoever keeps them is not written to at every step."""


@dataclass(frozen=True)
class Position:
    """A clip's denoising has come to step `done` of `total`; the rate is None until two steps of it were heard."""

    clip_id: str
    done: int
    total: int
    steps_per_second: float | None


class Pace:
    """Hears the steps of one stage of one shard, one clip after another."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[Step, float] | None = None
        self._told_at: float | None = None

    def hear(self, step: Step) -> Position | None:
        """Where the clip is, if it is time to tell: when it begins, and every `PERIOD_S` seconds."""
        now = self._clock()
        if self._first is None or self._first[0].clip_id != step.clip_id:
            self._first, self._told_at = (step, now), None
        if self._told_at is not None and now - self._told_at < PERIOD_S:
            return None
        self._told_at = now
        first, since = self._first
        rate = (step.done - first.done) / (now - since) if now > since and step.done > first.done else None
        return Position(step.clip_id, step.done, step.total, rate)
