"""How far a training run is: by the clock or by steps, whichever limit comes first."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator

from torch import Tensor

logger = logging.getLogger(__name__)

SAVE_EVERY_S = 60.0
REPORT_EVERY_S = 10.0


class Pace:
    """The steps of one run: `for step in pace`, numbered from 0, until `seconds` have passed or `steps` are done.

    Time counts from the first step. A run without any limit does not end.
    """

    def __init__(
        self,
        *,
        seconds: float = math.inf,
        steps: int = sys.maxsize,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds, self._steps, self._clock = seconds, steps, clock
        self._begin = self._saved = self._reported = clock()
        self._reported_step = self.step = 0

    def __iter__(self) -> Iterator[int]:
        self._begin = self._saved = self._reported = self._clock()
        while self.share < 1:
            yield self.step
            self.step += 1

    @property
    def share(self) -> float:
        """Of the whole run, what is over: 0 to 1."""
        return min(1.0, max((self._clock() - self._begin) / self._seconds, self.step / self._steps))

    def rate(self, *, warm_up: int, steady: float) -> float:
        """Share of the full learning rate: rises over `warm_up` steps, and falls to 0 in a line.

        `steady` is the share of the run before it falls.
        """
        return min(1.0, (self.step + 1) / warm_up, (1 - self.share) / (1 - steady))

    def saves(self) -> bool:
        """Whether a minute has passed since it last said so."""
        now = self._clock()
        is_due = now - self._saved >= SAVE_EVERY_S
        if is_due:
            self._saved = now
        return is_due

    def report(self, part: str, **values: float | Tensor) -> None:
        """Log a line of progress with these values, at most every ten seconds."""
        now = self._clock()
        if now - self._reported < REPORT_EVERY_S:
            return
        step_s = (now - self._reported) / (self.step + 1 - self._reported_step)
        measured = " ".join(f"{name} {value:.4g}" for name, value in values.items())
        logger.info("%s: step %d, %.0f %%, %.3f s a step, %s", part, self.step, 100 * self.share, step_s, measured)
        self._reported, self._reported_step = now, self.step + 1
