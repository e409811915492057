"""A stage's progress as lines of a log, at most one in ten seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from magi2.runtime.events import ClipFinished, Event, ModelsLoaded, Resumed, StageStarted, Step, StoreAway, StoreBack
from magi2.stages.progress import away_text

logger = logging.getLogger(__name__)

_PERIOD_S = 10.0


class ProgressLog:
    """Hears rank 0's events. A failed clip and a store that is away are told at once, all else when a line is due."""

    def __init__(self, title: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._title = title
        self._clock = clock
        self._told_at = clock()
        self._clips = 0
        self._states: list[str] = []
        self._step: Step | None = None
        self._first: tuple[Step, float] | None = None

    def hear(self, event: Event) -> None:
        """Take note of an event, and log a line if one is due."""
        now = self._clock()
        if isinstance(event, StageStarted):
            self._clips = event.clips
        elif isinstance(event, Step):
            if self._first is None or self._first[0].clip_id != event.clip_id:
                self._first = (event, now)
            self._step = event
        elif isinstance(event, ClipFinished):
            self._states.append(event.state)
            self._step = self._first = None
            if event.state == "failed":
                logger.error("%s: clip %s failed: %s", self._title, event.clip_id[:12], event.error)
        elif not isinstance(event, ModelsLoaded):
            self._tell(event)
        if now - self._told_at >= _PERIOD_S:
            self._told_at = now
            logger.info("%s: %s%s", self._title, self._counts(), self._position(now))

    def _tell(self, event: Event) -> None:
        """Log a line on what is rare enough."""
        if isinstance(event, Resumed):
            logger.info("%s: clip %s resumed at step %d/%d", self._title, event.clip_id[:12], event.done, event.total)
        elif isinstance(event, StoreAway):
            logger.warning("%s: %s", self._title, away_text(event.seconds, event.reason))
        elif isinstance(event, StoreBack):
            logger.warning("%s: the store is back after %.0f s", self._title, event.seconds)

    def summary(self, seconds: float) -> None:
        """The last line."""
        logger.info("%s: %s in %.1f s", self._title, self._counts(), seconds)

    def _counts(self) -> str:
        counts = [f"{self._states.count(state)} {state}" for state in ("made", "reused", "failed")]
        return f"{len(self._states)} of {self._clips} clips ({', '.join(counts)})"

    def _position(self, now: float) -> str:
        if self._step is None or self._first is None:
            return ""
        step, (first, since) = self._step, self._first
        rate = (step.done - first.done) / (now - since) if now > since else 0.0
        speed = f", {rate:.2f} steps/s, {(step.total - step.done) / rate:.0f} s left" if rate > 0 else ""
        return f", clip {step.clip_id[:12]} step {step.done}/{step.total}{speed}"
