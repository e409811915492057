"""How many clips of a batch may fail, and what follows when more do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

USUAL_STREAK = 5
"""So many equal failures in a row pause a batch of Airflow, unless it is told otherwise."""


class OnLimit(StrEnum):
    """What becomes of a batch of which more clips failed than it allows."""

    STOP = "stop"
    CONTINUE = "continue"

    @classmethod
    def chosen(cls, chosen: str | None, failure_limit: int) -> OnLimit:
        """The choice, and without one: a limit from 1 on stops; 0, which nobody set, only judges at the end."""
        if chosen is not None:
            return cls(chosen)
        return cls.STOP if failure_limit else cls.CONTINUE


@dataclass(frozen=True)
class FailureCount:
    """How many clips failed, refused rows among them, and how many may; as text the two beside each other."""

    failed: int
    limit: int
    on_limit: str

    @property
    def is_stopped(self) -> bool:
        """Whether nothing more of the batch is to begin."""
        return self.on_limit == OnLimit.STOP and self.failed > self.limit

    def __str__(self) -> str:
        return f"{self.failed} failed of at most {self.limit}" + (": stopped" if self.is_stopped else "")
