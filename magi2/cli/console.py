"""Where commands write: results to stdout, progress and errors to stderr."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from magi2.errors import in_one_line
from magi2.recipes.result import StageResult
from magi2.stages.progress import away_text
from magi2.types import Clip, StageName

if TYPE_CHECKING:
    from magi2.config.profile import Profile
    from magi2.deployment import Deployment

# What users wrote is printed as it is: neither markup nor emoji codes, and a path is never broken into lines.
_AS_IT_IS: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False, "soft_wrap": True}
AS_JSON = typer.Option(False, "--json", help="Print one JSON object.")
results = Console(**_AS_IT_IS)
errors = Console(**_AS_IT_IS, stderr=True)


def warn_of_mismatch(deployment: Deployment) -> None:
    """Say on stderr that the store does not seem to be the catalog's, if so: a command that only reads goes on."""
    if text := deployment.mismatch():
        errors.print(f"warning: {text}", style="yellow")


def check_machine(deployment: Deployment, profiles: Collection[Profile], clips: Sequence[Clip]) -> None:
    """Refuse what cannot be made or delivered here before anything is, and say which ffmpeg is used in another's place.

    Raises: as `check_profiles` does, MissingToolError as `fit_ffmpeg` does, what `check_signing` does.
    """
    from magi2.batches.static_checks import Site, check_profiles
    from magi2.delivery.credentials import check_signing
    from magi2.media.fitness import fit_ffmpeg

    program = fit_ffmpeg(deployment.settings.ffmpeg, *{profile.delivery for profile in profiles})
    if program.passed_over:
        errors.print(f"warning: {program.path} is used, since {program.passed_over}", style="yellow")
    check_signing(deployment.settings)
    check_profiles(profiles, clips, Site(deployment.settings, deployment.weights))


@contextmanager
def resumable() -> Iterator[None]:
    """Say, when somebody interrupts the block, that nothing of it is lost."""
    try:
        yield
    except KeyboardInterrupt:
        errors.print("interrupted: the same command goes on from here, from the last snapshot of a clip at work")
        raise


def print_json(value: object) -> None:
    """One JSON object on stdout, for machines."""
    typer.echo(json.dumps(value, ensure_ascii=False, sort_keys=True))


class TerminalProgress:
    """Bars on stderr: clips of the running stage, and steps of the running clip with rate and time left."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description:<24}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=errors,
        )
        self._clips: TaskID | None = None
        self._steps: tuple[str, TaskID] | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_steps()
        self._bars.stop()

    def stage_started(self, stage: StageName, clips: int) -> None:
        self._end_steps()
        self._clips = self._bars.add_task(stage.value, total=clips, rate="")

    def loading(self, stage: StageName) -> None:
        """Nothing to show: how long it takes is not known."""

    def models_loaded(self, stage: StageName, seconds: float) -> None:
        """Nothing to show: the bar moves when the first clip does."""

    def step(self, stage: StageName, clip: Clip, done: int, total: int) -> None:
        if self._steps is None or self._steps[0] != clip.clip_id:
            self._end_steps()
            task = self._bars.add_task(f"  {clip.short_id}", total=total, rate="")
            self._steps = (clip.clip_id, task)
        task = self._steps[1]
        self._bars.update(task, completed=done)
        speed = self._bars.tasks[self._bars.task_ids.index(task)].speed
        self._bars.update(task, rate=f"{speed:.2f}/s" if speed else "")

    def resumed(self, stage: StageName, clip: Clip, done: int, total: int) -> None:
        self.step(stage, clip, done, total)
        self._bars.console.print(f"{clip.short_id} {stage.value}: resumed at step {done} of {total}")

    def waiting(self, reason: str | None = None) -> None:
        self._bars.console.print(f"waits: {reason or 'another process makes the same'}")

    def store_away(self, seconds: float, reason: str) -> None:
        self._bars.console.print(f"{away_text(seconds, reason)} (Ctrl-C ends the command)", style="yellow")

    def store_back(self, seconds: float) -> None:
        self._bars.console.print(f"the store is back after {seconds:.0f} s")

    def clip_finished(self, result: StageResult) -> None:
        self._end_steps()
        if self._clips is not None:
            self._bars.advance(self._clips)
        if result.error is not None:
            line = f"{result.clip.short_id} {result.stage.value} failed: {in_one_line(result.error)}"
            self._bars.console.print(line, style="red")

    def _end_steps(self) -> None:
        if self._steps is not None:
            self._bars.remove_task(self._steps[1])
            self._steps = None
