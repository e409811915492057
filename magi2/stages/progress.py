"""How a stage tells what it is doing: the terminal, a log and an event stream each listen in their own way."""

from __future__ import annotations

from typing import Protocol

from magi2.recipes.result import StageResult
from magi2.types import Clip, StageName


class Progress(Protocol):
    """Listener of a run. `step` with no step done says that a clip begins, `resumed` that it goes on from a snapshot.

    A rank that is `waiting` has nothing to do until rank 0 says what or, being rank 0, until another process has made
    what it was about to make.
    """

    def stage_started(self, stage: StageName, clips: int) -> None: ...

    def loading(self, stage: StageName) -> None: ...

    def models_loaded(self, stage: StageName, seconds: float) -> None: ...

    def step(self, stage: StageName, clip: Clip, done: int, total: int) -> None: ...

    def resumed(self, stage: StageName, clip: Clip, done: int, total: int) -> None: ...

    def waiting(self) -> None: ...

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

    def waiting(self) -> None:
        pass

    def clip_finished(self, result: StageResult) -> None:
        pass
