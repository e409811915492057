"""Judges a group by what its ranks say: who is at work, who is silent, stuck, done or dead."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from magi2.errors import CancelledError, RankGoneError
from magi2.runtime.events import (
    Event,
    Failure,
    Finished,
    Heartbeat,
    Hello,
    Joined,
    Loading,
    ModelsLoaded,
    Resumed,
    StageStarted,
    Step,
    StoreAway,
    Waiting,
)

Phase = Literal["starting", "meeting", "loading", "stepping", "working", "waiting", "ended"]

_LEAST_READ_BYTES = 2**20
_CONSEQUENCES = {CancelledError.code, RankGoneError.code}


@dataclass(frozen=True)
class Limits:
    """How long, in seconds, a launcher waits for what.

    `start`: until a rank first speaks. `meet`: until it has met the others. `heartbeat`: for any word of a process;
    those come every 5 s unless it is frozen. `step`: for the next step of a clip or, while weights are loaded, for
    another MiB of them. `hang`: for progress of any other kind, which the longest single piece of work (delivering a
    clip) has to stay below. `exit`: from the first rank's end to the end of all. `grace`: from SIGTERM to SIGKILL.
    `lock`: for the accelerators. `stacks`: for each rank of a hung group to write where it is.
    """

    start: float = 110.0
    meet: float = 110.0
    heartbeat: float = 120.0
    step: float = 270.0
    hang: float = 1800.0
    exit: float = 10.0
    grace: float = 10.0
    lock: float = 600.0
    stacks: float = 0.5

    def of(self, phase: Phase) -> float:
        """How long a rank may stay in a phase without progress."""
        limits = {"starting": self.start, "meeting": self.meet, "loading": self.step, "stepping": self.step}
        return limits.get(phase, self.hang if phase == "working" else math.inf)


@dataclass
class _Rank:
    heard_at: float
    progress_at: float
    phase: Phase = "starting"
    position: str = "before its first step"
    bytes_read: int = 0


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
        return not self._endings and all(rank.phase == "ended" for rank in self._ranks.values())

    @property
    def cause(self) -> Ending | None:
        """The ending that made the group fail. That of a rank which was told to stop, or misses another, is not, if
        there is another: a dying process may close what it shares with other ranks before its connection to us.
        """
        own = (end for end in self._endings if end.failure is None or end.failure.code not in _CONSEQUENCES)
        return next(own, self._endings[0] if self._endings else None)

    def saw(self, number: int, event: Event | None, now: float) -> None:
        """Take note of a rank's event, or of its connection's end."""
        rank = self._ranks.get(number)
        if rank is None or rank.phase == "ended":
            return
        rank.heard_at = now
        if event is None or isinstance(event, Failure):
            rank.phase = "ended"
            self._endings.append(Ending(number, rank.position, event))
            self.ended_at = self.ended_at or now
        elif isinstance(event, Finished):
            rank.phase = "ended"
            self.ended_at = now if self.is_finished else self.ended_at
        elif _is_progress(event, rank):
            rank.phase, rank.progress_at = _phase(event), now
            rank.position = _position(event) or rank.position

    def fault(self, now: float) -> str | None:
        """What is wrong with ranks that should be at work, naming them; None while nothing is.

        A rank that holds up the others made its last progress before they did, so it alone is named.
        """
        if late := self._late(now, "starting"):
            return self._complaint(late, "did not start within", self._limits.start)
        if late := self._late(now, "meeting"):
            return self._complaint(late, "did not meet the other ranks within", self._limits.meet)
        at_work = [n for n, rank in self._ranks.items() if rank.phase not in ("starting", "ended")]
        if frozen := [n for n in at_work if now - self._ranks[n].heard_at > self._limits.heartbeat]:
            return self._complaint(frozen, "is frozen, not a word for", self._limits.heartbeat)
        if late := self._late(now, "loading", "stepping", "working"):
            return self._complaint(late, "hangs, no progress for", self._limits.of(self._ranks[late[0]].phase))
        return None

    def _late(self, now: float, *phases: Phase) -> list[int]:
        return [
            number
            for number, rank in self._ranks.items()
            if rank.phase in phases and now - rank.progress_at > self._limits.of(rank.phase)
        ]

    def _complaint(self, numbers: list[int], complaint: str, limit: float) -> str:
        return f"{', '.join(map(self._named, numbers))} {complaint} {limit:g} s"

    def _named(self, number: int) -> str:
        return f"rank {number} ({self._ranks[number].position})"


def _is_progress(event: Event, rank: _Rank) -> bool:
    if isinstance(event, Loading):
        if rank.phase == "loading" and event.bytes_read - rank.bytes_read < _LEAST_READ_BYTES:
            return False
        rank.bytes_read = event.bytes_read
    return not isinstance(event, Heartbeat)


def _phase(event: Event) -> Phase:
    if isinstance(event, Hello):
        return "meeting"
    if isinstance(event, Loading):
        return "loading"
    if isinstance(event, Waiting | StoreAway):
        return "waiting"
    if isinstance(event, Step | Resumed) and event.done < event.total:
        return "stepping"
    return "working"


def _position(event: Event) -> str | None:
    if isinstance(event, Step | Resumed):
        return f"clip {event.clip_id[:12]} step {event.done}/{event.total}"
    if isinstance(event, Hello):
        return "before it met the others"
    if isinstance(event, Joined):
        return "before its stage"
    if isinstance(event, StageStarted):
        return "at its first clip"
    if isinstance(event, Loading):
        return "loading weights"
    if isinstance(event, ModelsLoaded):
        return "with its weights loaded"
    return None
