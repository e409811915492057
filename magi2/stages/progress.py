"""How a stage tells what it is doing: the terminal, a log and an event stream each listen in their own way."""

from __future__ import annotations

from typing import Protocol

from magi2.recipes.result import StageResult
from magi2.types import Clip, StageName


class Progress(Protocol):
    """Listener of a run. `step` with no step done says that a clip begins, `resumed` that it goes on from a snapshot.

    A rank that is `waiting` has nothing to do until rank 0 says what or, being rank 0, until another process has made
    what it was about to make, or until what `reason` names has passed. A store that is away is waited for: told at
    once, now and then, and when it is back.
    """

    def stage_started(self, stage: StageName, clips: int) -> None: ...

    def loading(self, stage: StageName) -> None: ...

    def models_loaded(self, stage: StageName, seconds: float) -> None: ...

    def step(self, stage: StageName, clip: Clip, done: int, total: int) -> None: ...

    def resumed(self, stage: StageName, clip: Clip, done: int, total: int) -> None: ...

    def waiting(self, reason: str | None = None) -> None: ...

    def store_away(self, seconds: float, reason: str) -> None: ...

    def store_back(self, seconds: float) -> None: ...

    def clip_finished(self, result: StageResult) -> None: ...


class Silent:
    """Listens to nothing."""

    def stage_started(self, stage: StageName, clips: int) -> None:
        pass

    def loading(self, stage: StageName) -> None:
        pass

    def models_loaded(self, stage: StageName, seconds: float) -> None:
        pass

    def step(self, stage: StageName, clip: Clip, done: int, total: int) -> None:
        pass

    def resumed(self, stage: StageName, clip: Clip, done: int, total: int) -> None:
        pass

    def waiting(self, reason: str | None = None) -> None:
        pass

    def store_away(self, seconds: float, reason: str) -> None:
        pass

    def store_back(self, seconds: float) -> None:
        pass

    def clip_finished(self, result: StageResult) -> None:
        pass


def away_text(seconds: float, reason: str) -> str:
    """What people are told of a store that has been away for so long."""
    since = f"has been away for {seconds:.0f} s" if seconds else "is away"
    return f"the store {since} and is waited for: {reason}"
