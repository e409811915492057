"""Runs steps one after the other, each in a group of processes that ends with it, and keeps what each found.

An outcome lies in the folder as soon as there is one: whoever runs the same again goes on behind it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

from magi2.acceptance.plan import DONE, STEPS, Options, Outcome, Step
from magi2.acceptance.reference import slower_than_reference
from magi2.acceptance.work import OPTIONS_FILE, OUTCOME_FILE, UNFINISHED, layout_of, read, write
from magi2.config.settings import Settings
from magi2.errors import InfrastructureError, Magi2Error
from magi2.files import disk_errors
from magi2.runtime.guard import Guard
from magi2.runtime.launcher import group_environment
from magi2.runtime.lock import HeldLock, accelerator_lock
from magi2.runtime.log_file import open_log
from magi2.runtime.process import ProcessGroup
from magi2.stages.layouts import is_cpu

_ROOT = Path(__file__).resolve().parents[2]
_TICK_S = 0.05
_GRACE_S = 5.0
_LOCK_S = 5.0

OwnSteps = Mapping[str, Callable[[Options], Outcome]]
"""Steps that the caller runs himself, in this process."""


class Acceptance:
    """An acceptance in a folder of its own, which keeps outcomes and logs. `limit_s` is what any one step may take."""

    def __init__(
        self, folder: Path, options: Options, settings: Settings, *, own: OwnSteps | None = None, limit_s: float = 1800
    ) -> None:
        self.folder = folder
        self.options = options
        self._settings, self._own, self._limit_s = settings, own or {}, limit_s
        with disk_errors(folder):
            for name in ("steps", "logs"):
                (folder / name).mkdir(parents=True, exist_ok=True)

    def run(self, steps: Sequence[Step], *, again: bool = False, on_end: Callable[[Outcome], None]) -> list[Outcome]:
        """The outcomes of all steps, in order; one that came to its end before is not run again unless asked for.

        `on_end` hears each. An interrupt ends the running step's processes, and is passed on.
        """
        outcomes = []
        for step in steps:
            outcome = None if again else self.kept(step)
            if outcome is None:
                outcome = self._run(step)
                write(self._place(step), outcome)
            outcomes.append(outcome)
            on_end(outcome)
        return outcomes

    def kept(self, step: Step) -> Outcome | None:
        """What an earlier run with these options has found, if it came to its end."""
        outcome = self._read(step)
        return outcome if outcome and outcome.verdict in DONE else None

    def told(self) -> list[Outcome]:
        """What any run with these options has found, also of steps that failed or were not run."""
        return [outcome for step in STEPS if (outcome := self._read(step))]

    def _read(self, step: Step) -> Outcome | None:
        outcome = read(self._place(step))
        return outcome if outcome and outcome.key == self.options.key else None

    def _place(self, step: Step) -> Path:
        return self.folder / "steps" / f"{step.name}.json"

    def _run(self, step: Step) -> Outcome:
        started = time.monotonic()
        try:
            if own := self._own.get(step.name):
                return own(self.options)
            return slower_than_reference(self._in_group(step))
        except Magi2Error as error:
            seconds = round(time.monotonic() - started, 2)
            return Outcome(step.name, "failed", seconds, key=self.options.key, reason=str(error))

    def _in_group(self, step: Step) -> Outcome:
        """The step in processes of its own, which are gone when this returns or raises."""
        work = self.folder / "work" / step.name
        shutil.rmtree(work, ignore_errors=True)
        with disk_errors(work):
            work.mkdir(parents=True)
            (work / OPTIONS_FILE).write_text(json.dumps(asdict(self.options)))
        ranks = layout_of(step, self.options, self._settings).num_ranks
        log, environment = self.folder / "logs" / f"{step.name}.log", _environment(ranks)
        with ExitStack() as stack:
            lock = self._lock(step, stack)
            log.unlink(missing_ok=True)
            log_fd = open_log(log)
            stack.callback(os.close, log_fd)
            started = time.monotonic()
            group = ProcessGroup(_command(step, work, ranks), environment=environment, log_fd=log_fd, pass_fds=lock.fds)
            # It outlives this process, if that is killed, and leaves neither processes nor the folder behind.
            guard = Guard(group, work, environment=environment, log_fd=log_fd, pass_fds=lock.fds)
            stack.callback(guard.dismiss)
            stack.callback(group.terminate, _GRACE_S)
            lock.describe(group=group.pid, title=f"magi2 accept, {step.name}")
            ended = self._wait(group)
            group.terminate(_GRACE_S)
            return self._outcome(step, work / OUTCOME_FILE, ended, time.monotonic() - started)

    def _wait(self, group: ProcessGroup) -> str | None:
        """Until the group has ended or has to; why, None when it ended well by itself."""
        started = time.monotonic()
        while (code := group.poll()) is None:
            if time.monotonic() - started > self._limit_s:
                return f"it took more than {self._limit_s:g} s and was ended"
            time.sleep(_TICK_S)
        return f"its processes ended with {code}" if code else None

    def _outcome(self, step: Step, path: Path, ended: str | None, seconds: float) -> Outcome:
        """What the step has written, as a failure with what it had found where it was ended."""
        outcome = read(path) or Outcome(step.name, "failed", 0.0, key=self.options.key, reason=UNFINISHED)
        outcome = replace(outcome, seconds=round(seconds, 2))
        is_told = outcome.verdict == "failed" and outcome.reason not in (None, UNFINISHED)
        return replace(outcome, verdict="failed", reason=ended) if ended and not is_told else outcome

    def _lock(self, step: Step, stack: ExitStack) -> HeldLock:
        """The host's accelerators, against renders; nothing for a step that opens none. Raises InfrastructureError."""
        is_free = step.devices == "none" or is_cpu(self._settings.device)
        try:
            return stack.enter_context(accelerator_lock(() if is_free else "all", timeout_s=_LOCK_S))
        except InfrastructureError as error:
            raise InfrastructureError(f"the accelerators are in use: {error}", hint="pause the renders") from error


def _command(step: Step, work: Path, ranks: int) -> list[str]:
    child = ["magi2.acceptance.child", step.name, str(work)]
    if ranks == 1:
        return [sys.executable, "-m", *child]
    return [sys.executable, "-m", "magi2.runtime.ranks", str(ranks), *child]


def _environment(ranks: int) -> dict[str, str]:
    """That of a stage's group, in which Python finds the package where this process found it."""
    environment = group_environment(ranks)
    if not _ROOT.name.endswith("-packages"):
        environment["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *filter(None, [environment.get("PYTHONPATH")])])
    return environment
