"""How far work over a whole store has come, told in its log."""

from __future__ import annotations

import logging
import time

logger = logging.getLogger(__name__)

_PAUSE_S = 30.0  # between two lines


class Progress:
    """Counts what is done, and says how long the rest takes when it knows the `total`.

    `text` is the line for the log, with one `%s` for the count.
    """

    def __init__(self, text: str, total: int | None = None) -> None:
        self._text, self._total = text, total
        self._began = self._told = time.monotonic()
        self._count = 0

    def add(self, count: int) -> None:
        """Count some more, and say so every half minute."""
        self._count += count
        now = time.monotonic()
        if now - self._told >= _PAUSE_S:
            self._told = now
            logger.info("%s", self._line(now - self._began))

    def _line(self, seconds: float) -> str:
        rate = self._count / seconds
        if not self._total:
            return f"{self._text % self._count}, {rate:.0f} a second"
        left = max(0.0, self._total - self._count) / rate
        return f"{self._text % f'{self._count} of {self._total}'}, about {left:.0f} s left"
