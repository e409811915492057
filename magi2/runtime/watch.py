"""Judges a group by what its ranks say: who is at work, who is silent, stuck, done or dead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from magi2.runtime.events import Event, Failure, Finished, Heartbeat, Hello, StageStarted, Step


@dataclass(frozen=True)
class Limits:
    """How long, in seconds, a launcher waits for what.

    `start`: until a rank first speaks. `heartbeat`: for any word of a process; those come every 5 s unless it is
    frozen. `hang`: for progress, which the longest single piece of work (loading all weights, decoding a clip) has to
    stay below. `exit`: from the first rank's end to the end of all. `grace`: from SIGTERM to SIGKILL. `lock`: for the
    accelerators. `stacks`: for a hung rank to write where it is.
    """

    start: float = 300.0
    heartbeat: float = 120.0
    hang: float = 1800.0
    exit: float = 10.0
    grace: float = 10.0
    lock: float = 600.0
    stacks: float = 1.0


@dataclass
class _Rank:
    heard_at: float
    progress_at: float
    state: Literal["starting", "running", "ended"] = "starting"
    position: str = "before its first step"


@dataclass(frozen=True)
class Ending:
    """How a rank ended: by a failure it reported, or without a word when there is none."""

    rank: int
    position: str
    failure: Failure | None


class Watch:
    """The state of `ranks` processes. All times are of one monotonic clock, in seconds."""

    def __init__(self, ranks: int, limits: Limits, now: float) -> None:
        self._limits = limits
        self._ranks = {rank: _Rank(now, now) for rank in range(ranks)}
        self._endings: list[Ending] = []
        self.ended_at: float | None = None
        """When the first rank ended, or all were finished."""

    @property
    def is_finished(self) -> bool:
        """Whether every rank said that it has done its work."""
        return not self._endings and all(rank.state == "ended" for rank in self._ranks.values())

    @property
    def cause(self) -> Ending | None:
        """The ending that made the group fail. A rank that was told to stop is a consequence, if there is another."""
        own = (end for end in self._endings if end.failure is None or end.failure.code != "cancelled")
        return next(own, self._endings[0] if self._endings else None)

    def saw(self, number: int, event: Event | None, now: float) -> None:
        """Take note of a rank's event, or of its connection's end."""
        rank = self._ranks.get(number)
        if rank is None or rank.state == "ended":
            return
        rank.heard_at = now
        if event is None or isinstance(event, Failure):
            rank.state = "ended"
            self._endings.append(Ending(number, rank.position, event))
            self.ended_at = self.ended_at or now
        elif isinstance(event, Finished):
            rank.state = "ended"
            self.ended_at = now if self.is_finished else self.ended_at
        elif not isinstance(event, Heartbeat):
            rank.state, rank.progress_at = "running", now
            rank.position = _position(event) or rank.position

    def fault(self, now: float) -> str | None:
        """What is wrong with ranks that should be at work, naming them; None while nothing is.

        A rank that holds up the others made its last progress before they did, so it alone is named.
        """
        limits = self._limits
        for state, since, limit, complaint in (
            ("starting", "heard_at", limits.start, "did not start within"),
            ("running", "heard_at", limits.heartbeat, "is frozen, not a word for"),
            ("running", "progress_at", limits.hang, "hangs, no progress for"),
        ):
            late = [n for n, rank in self._ranks.items() if rank.state == state and now - getattr(rank, since) > limit]
            if late:
                return f"{', '.join(map(self._named, late))} {complaint} {limit:g} s"
        return None

    def _named(self, number: int) -> str:
        return f"rank {number} ({self._ranks[number].position})"


def _position(event: Event) -> str | None:
    if isinstance(event, Step):
        return f"clip {event.clip_id[:12]} step {event.done}/{event.total}"
    if isinstance(event, Hello):
        return "before its stage"
    if isinstance(event, StageStarted):
        return "loading or at its first clip"
    return None
