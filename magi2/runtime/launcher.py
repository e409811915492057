"""Runs one stage of one shard in a process group of its own, and turns whatever happens to it into one outcome."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from magi2.config.settings import Settings
from magi2.files import disk_errors
from magi2.runtime.channel import Listener
from magi2.runtime.events import (
    ClipFinished,
    Event,
    ModelsLoaded,
    Resumed,
    StageStarted,
    Step,
    StoreAway,
    StoreBack,
)
from magi2.runtime.guard import Guard
from magi2.runtime.job import JOB_FILE, StageJob
from magi2.runtime.lock import HeldLock, accelerator_lock, work_lock
from magi2.runtime.log_file import append_line, bound_log, excerpt, log_folder, open_log
from magi2.runtime.outcome import End, Facts, lost_clip, outcome
from magi2.runtime.process import ProcessGroup
from magi2.runtime.progress_log import ProgressLog
from magi2.runtime.run_folder import run_folder
from magi2.runtime.tally import ClipLostError, Tally
from magi2.runtime.watch import Limits, Watch
from magi2.stages.layouts import is_cpu

logger = logging.getLogger(__name__)

_FORWARDED = (StageStarted, ModelsLoaded, Step, Resumed, StoreAway, StoreBack, ClipFinished)
_TICK_S = 0.2
_EXIT_TICK_S = 0.02
"""How often a group is looked at whose ranks are done: it is about to exit, and somebody waits for that alone."""
_LOG_CHECK_S = 5.0

OnEvent = Callable[[Event], None]
ShouldStop = Callable[[], bool]


@dataclass(frozen=True)
class JobResult:
    """What came of a stage that ran to its end; clips may have failed all the same. `log` holds its output."""

    clips: tuple[ClipFinished, ...]
    seconds: float
    models_loaded_s: float
    log: Path

    def count(self, state: str) -> int:
        """How many clips were `made`, `reused` or `failed`."""
        return sum(clip.state == state for clip in self.clips)


class Launcher:
    """Starts stages on this host; needs no Airflow.

    `folder` is for locks and running jobs (by default `run_folder()`), `logs` for the output of groups, by default a
    folder in it. All launchers that share accelerators must share `folder`.
    """

    def __init__(self, *, folder: Path | None = None, logs: Path | None = None, limits: Limits | None = None) -> None:
        self._folder = folder
        self._logs = logs
        self._limits = limits or Limits()
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Make `run`, now and ever after, end its group and raise CancelledError; for any thread or signal handler."""
        self._stopped.set()

    def run(
        self, job: StageJob, *, on_event: OnEvent | None = None, should_stop: ShouldStop | None = None
    ) -> JobResult:
        """Run the job and wait for its end. Nothing of it is left behind, whichever way this call ends.

        A clip that its group does not survive has failed, and another group goes on without it. `on_event` hears rank
        0's progress (stage, models, steps, clips) in this thread; what it raises ends the group. `should_stop` is asked
        five times a second. SIGTERM stops the job as `stop` does, unless the program handles that signal itself. The
        calling thread must be one that does not end before the call.

        Raises: the error that the worker reported; InfrastructureError for a rank that died or hung, naming it, or
        a lock that stays held; CancelledError when it was stopped. The end of the group's output, and its first
        traceback, are in the message.
        """

        def stops() -> bool:
            return self._stopped.is_set() or (should_stop is not None and should_stop())

        place = run_folder(self._folder)
        with _stopping_on_sigterm(self.stop), self._locked(job, place, stops) as lock:
            tally = Tally(on_event or _ignore)
            while True:
                log = (self._logs or log_folder(place)) / _log_name(job)
                try:
                    return _Run(job, lock, place, log, self._limits, tally, stops).execute()
                except ClipLostError as loss:
                    job = replace(job, lost=tally.lost(loss))

    def _locked(self, job: StageJob, place: Path, should_stop: ShouldStop) -> AbstractContextManager[HeldLock]:
        """The job's accelerators; of a job on the CPU its work, so that no other attempt does the same meanwhile."""
        devices = () if is_cpu(Settings.from_environment().device) else job.locked_devices
        what = "accelerators" if devices else "the same work"
        work = job.store, job.stage.value, job.key
        lock = partial(accelerator_lock, devices) if devices else partial(work_lock, *work)
        return lock(
            timeout_s=self._limits.lock,
            on_wait=lambda holder: logger.info("%s: waits for %s held by %s", job.title, what, holder),
            should_stop=should_stop,
            folder=place,
        )


class _Run:
    """One group from its start to its end."""

    def __init__(
        self,
        job: StageJob,
        lock: HeldLock,
        place: Path,
        log: Path,
        limits: Limits,
        tally: Tally,
        should_stop: ShouldStop,
    ) -> None:
        self._job, self._lock, self._place, self._log = job, lock, place, log
        self._limits, self._tally, self._should_stop = limits, tally, should_stop
        self._started = time.monotonic()
        self._watch = Watch(job.ranks, limits, self._started)
        self._progress = ProgressLog(job.title)

    def execute(self) -> JobResult:
        """Start, watch, end and judge the group."""
        with ExitStack() as stack:
            with disk_errors(self._place):
                self._start(stack)
            try:
                end = self._follow()
            finally:
                self._group.terminate(self._limits.grace)
        return self._judge(end)

    def _start(self, stack: ExitStack) -> None:
        job, fds, environment = self._job, self._lock.fds, _environment(self._job)
        folder = Path(tempfile.mkdtemp(prefix="job-", dir=self._place))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        log_fd = open_log(self._log)
        stack.callback(os.close, log_fd)
        job.write(folder)
        self._listener = Listener(folder, fds)
        stack.callback(self._listener.close)
        self._group = ProcessGroup(command(job, folder), environment=environment, log_fd=log_fd, pass_fds=fds)
        stack.callback(self._group.terminate, 0.0)
        guard = Guard(self._group, folder, environment=environment, log_fd=log_fd, pass_fds=fds)
        stack.callback(guard.dismiss)
        self._lock.describe(group=self._group.pid, title=job.title)
        logger.info("%s: group %d, output in %s", job.title, self._group.pid, self._log)

    def _follow(self) -> End:
        """Hear the ranks until there is a reason to stop."""
        log_checked = self._started
        while True:
            messages = self._listener.poll(_TICK_S if self._watch.ended_at is None else _EXIT_TICK_S)
            now = time.monotonic()
            for message in messages:
                self._watch.saw(message.rank, message.event, now)
            # Before anybody is told: a listener that takes its time must not make the ranks look silent.
            if fault := self._watch.fault(now):
                self._gather_stacks()
                return End(fault=fault)
            for message in messages:
                if message.rank == 0 and message.event is not None:
                    self._forward(message.event)
            if self._should_stop():
                return End(stopped=True)
            code = self._group.poll()
            if code is not None and not messages:
                return End(code=code)
            if self._watch.ended_at is not None and now - self._watch.ended_at > self._limits.exit:
                return End()
            if now - log_checked > _LOG_CHECK_S:
                log_checked = now
                with disk_errors(self._log):
                    bound_log(self._log)

    def _forward(self, event: Event) -> None:
        if isinstance(event, _FORWARDED) and self._tally.hear(event):
            self._progress.hear(event)

    def _gather_stacks(self) -> None:
        """Make the ranks write where they are, one after the other; only they: it would end any other process."""
        for rank, pid in sorted(self._listener.pids.items()):
            with suppress(ProcessLookupError), disk_errors(self._log):
                append_line(self._log, f"stacks of rank {rank} (process {pid}):")
                os.kill(pid, signal.SIGUSR1)
                time.sleep(self._limits.stacks)

    def _judge(self, end: End) -> JobResult:
        facts = self._facts(end)
        if error := outcome(facts):
            clip = lost_clip(facts)
            raise ClipLostError(clip, error) if clip else error
        if end.code is None:
            logger.warning("%s: was done but did not exit, and was ended", self._job.title)
        seconds = time.monotonic() - self._tally.started
        self._progress.summary(seconds)
        return JobResult(tuple(self._tally.clips.values()), seconds, self._tally.models_loaded_s, self._log)

    def _facts(self, end: End) -> Facts:
        cause = self._watch.cause
        return Facts(
            title=self._job.title,
            ranks=self._job.ranks,
            end=end,
            cause=cause,
            pid=self._listener.pids.get(cause.rank) if cause else None,
            is_finished=self._watch.is_finished,
            output=self._output,
        )

    def _output(self) -> str:
        text = excerpt(self._log)
        return f"\nfrom {self._log}:\n{text}" if text else ""


def command(job: StageJob, folder: Path) -> list[str]:
    """What to execute: the worker, or the process that forks `job.ranks` of them."""
    worker = [job.worker_module, "--job", str(folder / JOB_FILE)]
    if job.ranks == 1:
        return [sys.executable, "-m", *worker]
    return [sys.executable, "-m", "magi2.runtime.ranks", str(job.ranks), *worker]


def group_environment(ranks: int) -> dict[str, str]:
    """This process's environment, with what a group needs. Python finds modules where they are installed only."""
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    # All ranks are on this host: gloo need not ask which of its names and networks lead to it.
    environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if ranks > 1:
        environment.setdefault("OMP_NUM_THREADS", "1")  # else each would take every core of the host
    return environment


def _environment(job: StageJob) -> Mapping[str, str]:
    environment = group_environment(job.ranks)
    if job.locked_devices and job.locked_devices != "all":
        visible = ",".join(map(str, sorted(set(job.locked_devices))))
        environment |= {"CUDA_VISIBLE_DEVICES": visible, "MUSA_VISIBLE_DEVICES": visible}
    return environment


def _log_name(job: StageJob) -> str:
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    group = f"{job.batch_id}.{job.shard}.{job.stage.value}.{job.attempt}.{len(job.lost)}"
    return f"{group}.{now}-{os.getpid()}.log"


def _ignore(event: Event) -> None:
    pass


@contextmanager
def _stopping_on_sigterm(stop: Callable[[], None]) -> Iterator[None]:
    """Stop on SIGTERM where it would end this process at once; a program's own handler is left in place."""
    is_main = threading.current_thread() is threading.main_thread()
    is_ours = is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if is_ours:
        signal.signal(signal.SIGTERM, lambda number, frame: stop())
    try:
        yield
    finally:
        if is_ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
