"""A stage's progress as events: told to a listener of this process, or written to a file descriptor."""

from __future__ import annotations

import logging
import os
import resource
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from magi2.errors import Magi2Error, error_text
from magi2.recipes.result import StageResult
from magi2.runtime.events import (
    ClipFinished,
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
    StoreBack,
    Waiting,
    to_line,
)
from magi2.types import ACCELERATOR_STAGES, Clip, StageName

logger = logging.getLogger(__name__)

HEARTBEAT_S = 5.0
_STEP_S = 0.2


class EventTeller:
    """Tells a listener, from any thread, what happens on a rank. `peak_memory` gives bytes."""

    def __init__(
        self, listener: Callable[[Event], None], *, ranks: int = 1, peak_memory: Callable[[], int] = lambda: 0
    ) -> None:
        self._listener = listener
        self._ranks = ranks
        self._peak_memory = peak_memory

    def stage_started(self, stage: StageName, clips: int) -> None:
        self._listener(StageStarted(stage.value, clips))

    def loading(self, stage: StageName) -> None:
        self._listener(Loading(_bytes_read()))

    def models_loaded(self, stage: StageName, seconds: float) -> None:
        self._listener(ModelsLoaded(seconds))

    def step(self, stage: StageName, clip: Clip, done: int, total: int) -> None:
        self._listener(Step(clip.clip_id, done, total))

    def resumed(self, stage: StageName, clip: Clip, done: int, total: int) -> None:
        self._listener(Resumed(clip.clip_id, done, total))

    def waiting(self, reason: str | None = None) -> None:
        self._listener(Waiting())

    def store_away(self, seconds: float, reason: str) -> None:
        self._listener(StoreAway(seconds, reason))

    def store_back(self, seconds: float) -> None:
        self._listener(StoreBack(seconds))

    def clip_finished(self, result: StageResult) -> None:
        made, worked = result.state == "made", result.state != "reused"
        seconds = max(result.seconds, 0.0)
        self._listener(
            ClipFinished(
                clip_id=result.clip.clip_id,
                state=result.state,
                key=result.key,
                seconds=seconds,
                flags=tuple(result.flags),
                error_code=result.error.code if result.error else None,
                error=error_text(result.error) if result.error else None,
                peak_memory_bytes=self._peak_memory() if made else 0,
                # A clip that failed held the accelerators just as long.
                accelerator_seconds=seconds * self._ranks if worked and result.stage in ACCELERATOR_STAGES else 0.0,
                measures=result.measures,
            )
        )


class EventProgress(EventTeller):
    """Writes events to `fd`, from any thread. Within its context a thread sends heartbeats.

    The descriptor is not stdout, so that what libraries print breaks nothing. Steps come at most five times a second;
    they and heartbeats are dropped rather than wait for a listener that does not read. Nobody listening is no error:
    the kernel and the guard end a worker whose launcher is gone. While weights are loaded, heartbeats say how much was
    read.
    """

    def __init__(
        self,
        fd: int,
        *,
        rank: int = 0,
        ranks: int = 1,
        peak_memory: Callable[[], int] = lambda: 0,
        heartbeat_s: float = HEARTBEAT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(self._send, ranks=ranks, peak_memory=peak_memory)
        self._fd = fd
        self._rank = rank
        self._heartbeat_s = heartbeat_s
        self._clock = clock
        self._lock = threading.RLock()
        self._step_at = -_STEP_S
        self._unsent: Step | None = None
        self._is_loading = False
        self._is_store_away = False
        self._is_heard = True
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._send(Hello(self._rank, os.getpid()))
        self._heart.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._heart.join()

    def joined(self) -> None:
        """This rank has met all others."""
        self._send(Joined())

    def loading(self, stage: StageName) -> None:
        self._is_loading = True
        super().loading(stage)

    def models_loaded(self, stage: StageName, seconds: float) -> None:
        with self._lock:
            self._is_loading = False
            super().models_loaded(stage, seconds)

    def step(self, stage: StageName, clip: Clip, done: int, total: int) -> None:
        with self._lock:
            self._unsent = Step(clip.clip_id, done, total)
            if done >= total or self._clock() - self._step_at >= _STEP_S:
                self._send_step()

    def waiting(self, reason: str | None = None) -> None:
        self._end_steps()
        super().waiting()

    def store_away(self, seconds: float, reason: str) -> None:
        self._end_steps()
        with self._lock:
            self._is_store_away = True
            super().store_away(seconds, reason)

    def store_back(self, seconds: float) -> None:
        with self._lock:
            self._is_store_away = False
            super().store_back(seconds)

    def clip_finished(self, result: StageResult) -> None:
        self._end_steps()
        super().clip_finished(result)

    def failed(self, error: Magi2Error, clip_id: str | None = None) -> None:
        """The run as a whole failed; `clip_id` is that of a clip which the group did not survive."""
        self._send(Failure(error.code, error_text(error), clip_id))

    def finished(self) -> None:
        """All is done and stored."""
        self._send(Finished())

    def _beat(self) -> None:
        while not self._ended.wait(self._heartbeat_s):
            with self._lock:
                self._send_step()
                is_loading = self._is_loading and not self._is_store_away  # whoever waits for the store is not late
                self._send(Loading(_bytes_read()) if is_loading else Heartbeat(), may_drop=True)

    def _end_steps(self) -> None:
        """A step that is still unsent must not come after the end of its clip."""
        with self._lock:
            self._unsent = None

    def _send_step(self) -> None:
        if self._unsent is not None:
            self._send(self._unsent, may_drop=True)
            self._unsent, self._step_at = None, self._clock()

    def _send(self, event: Event, *, may_drop: bool = False) -> None:
        line = to_line(event)
        with self._lock:
            if not self._is_heard or (may_drop and not self._is_writable()):
                return
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except OSError as error:
                self._is_heard = False
                logger.warning("nobody hears the events any more: %s", error)

    def _is_writable(self) -> bool:
        """Whether a short line can be written at once; select would not take descriptors beyond 1,023."""
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return any(state & select.POLLOUT for _, state in poll.poll(0))


def _bytes_read() -> int:
    """Bytes that this process took in since its start, by reads or by touching pages of mapped files.

    The pages of the heap count as well. It only has to stand still when loading does.
    """
    faults = resource.getrusage(resource.RUSAGE_SELF)
    touched = (faults.ru_minflt + faults.ru_majflt) * resource.getpagesize()
    read = next(line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("rchar:"))
    return touched + int(read.split()[1])
