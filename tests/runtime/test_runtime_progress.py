"""A stage's progress on a descriptor: throttled, from any thread, and never in the stage's way."""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from pathlib import Path

from magi2.errors import ImageError
from magi2.recipes.result import StageResult
from magi2.runtime.events import (
    ClipFinished,
    Event,
    Failure,
    Finished,
    Heartbeat,
    Hello,
    Loading,
    Resumed,
    StageStarted,
    Step,
    StoreAway,
    StoreBack,
    Waiting,
    from_line,
)
from magi2.runtime.progress import EventProgress
from magi2.types import Clip, StageName
from tests.runtime.runtime_helpers import wait_until

CLIP = Clip(prompt="a secret prompt", seed=1, profile_name="tiny", profile_digest="0" * 64)


class Pipe:
    """A pipe of which everything that was written is read as events."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.data = b""

    def events(self) -> list[Event]:
        os.set_blocking(self.reader, False)
        try:
            while data := os.read(self.reader, 2**20):
                self.data += data
        except BlockingIOError:
            pass
        assert b"secret" not in self.data
        return [event for line in self.data.splitlines() if (event := from_line(line)) is not None]


def test_protocol_becomes_events() -> None:
    pipe = Pipe()
    with EventProgress(pipe.writer, rank=1, ranks=8, peak_memory=lambda: 7) as progress:
        progress.stage_started(StageName.PREVIEW, 2)
        progress.models_loaded(StageName.PREVIEW, 3.0)
        progress.step(StageName.PREVIEW, CLIP, 1, 100)
        progress.clip_finished(StageResult(StageName.PREVIEW, CLIP, "made", 2.0, "k", ("f",)))
        progress.clip_finished(StageResult(StageName.PREVIEW, CLIP, "reused", 2.0, "k"))
        progress.clip_finished(StageResult(StageName.MUX, CLIP, "made", 2.0, "k"))
        progress.clip_finished(StageResult(StageName.MUX, CLIP, "failed", 2.0, error=ImageError("why")))
        progress.clip_finished(StageResult(StageName.DECODE, CLIP, "failed", 2.0, error=ImageError("why")))
        progress.failed(ImageError("why"))
        progress.finished()
    events = pipe.events()
    assert events[0] == Hello(1, os.getpid())
    assert events[1] == StageStarted("preview", 2)
    assert events[3] == Step(CLIP.clip_id, 1, 100)
    assert events[4] == ClipFinished(CLIP.clip_id, "made", "k", 2.0, ("f",), None, None, 7, 16.0)
    assert events[5] == ClipFinished(CLIP.clip_id, "reused", "k", 2.0)
    assert events[6] == ClipFinished(CLIP.clip_id, "made", "k", 2.0, peak_memory_bytes=7)  # no accelerator
    assert events[7] == ClipFinished(CLIP.clip_id, "failed", None, 2.0, (), "image", "why")
    assert events[8] == ClipFinished(CLIP.clip_id, "failed", None, 2.0, (), "image", "why", 0, 16.0)
    assert events[9:] == [Failure("image", "why"), Finished()]


def test_steps_come_at_most_five_times_a_second_and_the_last_one_always() -> None:
    pipe, now = Pipe(), [0.0]
    progress = EventProgress(pipe.writer, clock=lambda: now[0])
    for done in range(1, 1001):
        now[0] += 0.01
        progress.step(StageName.PREVIEW, CLIP, done, 1000)
    steps = [event.done for event in pipe.events() if isinstance(event, Step)]
    assert 45 <= len(steps) <= 52
    assert steps[0] == 1
    assert steps[-1] == 1000


def test_heartbeats_come_by_themselves_and_bring_a_step_that_was_held_back() -> None:
    pipe = Pipe()
    with EventProgress(pipe.writer, heartbeat_s=0.05, clock=lambda: 0.0) as progress:
        progress.step(StageName.PREVIEW, CLIP, 1, 100)
        progress.step(StageName.PREVIEW, CLIP, 2, 100)
        wait_until(lambda: sum(isinstance(event, Heartbeat) for event in pipe.events()) >= 3)
    assert Step(CLIP.clip_id, 2, 100) in pipe.events()
    count = len(pipe.events())
    time.sleep(0.15)
    assert len(pipe.events()) == count  # no heart beats after the end


def loading(pipe: Pipe) -> int:
    return sum(isinstance(event, Loading) for event in pipe.events())


def test_loading_beats_by_what_was_read(tmp_path: Path) -> None:
    pipe, weights = Pipe(), tmp_path / "weights"
    weights.write_bytes(bytes(8 * 2**20))
    with EventProgress(pipe.writer, heartbeat_s=0.05) as progress:
        progress.loading(StageName.PREVIEW)
        weights.read_bytes()
        before = loading(pipe)
        wait_until(lambda: loading(pipe) >= before + 2)  # the next one may have been counted before the file was read
        progress.models_loaded(StageName.PREVIEW, 1.0)
        wait_until(lambda: isinstance(pipe.events()[-1], Heartbeat))
    read = [event.bytes_read for event in pipe.events() if isinstance(event, Loading)]
    assert read == sorted(read) and read[-1] - read[0] >= 8 * 2**20


def test_step_that_was_held_back_never_comes_after_the_end_of_its_clip() -> None:
    pipe = Pipe()
    with EventProgress(pipe.writer, heartbeat_s=0.05, clock=lambda: 0.0) as progress:
        progress.resumed(StageName.PREVIEW, CLIP, 40, 100)
        finish = partial(progress.clip_finished, StageResult(StageName.MUX, CLIP, "made", 0.0))
        for done, end in ((41, progress.waiting), (43, finish)):
            progress.step(StageName.PREVIEW, CLIP, done, 100)
            progress.step(StageName.PREVIEW, CLIP, done + 1, 100)
            end()
            wait_until(lambda: isinstance(pipe.events()[-1], Heartbeat))
        progress.failed(ImageError("why"), CLIP.clip_id)
    events = [event for event in pipe.events() if not isinstance(event, Heartbeat)]
    assert events[1] == Resumed(CLIP.clip_id, 40, 100)
    waits = events.index(Waiting())
    finished = next(at for at, event in enumerate(events) if isinstance(event, ClipFinished))
    # A heartbeat may bring it before the end.
    assert Step(CLIP.clip_id, 42, 100) not in events[waits:]
    assert Step(CLIP.clip_id, 44, 100) not in events[finished:]
    assert events[-1] == Failure("image", "why", CLIP.clip_id)


def test_full_pipe_does_not_stop_the_steps() -> None:
    pipe, now = Pipe(), [0.0]
    progress = EventProgress(pipe.writer, clock=lambda: now[0])
    for done in range(5000):
        now[0] += 1
        progress.step(StageName.PREVIEW, CLIP, done, 10_000)
    assert 0 < len(pipe.events()) < 5000


def test_listener_that_is_gone_does_not_stop_the_stage() -> None:
    pipe = Pipe()
    os.close(pipe.reader)
    progress = EventProgress(pipe.writer)
    progress.stage_started(StageName.MUX, 1)
    progress.clip_finished(StageResult(StageName.MUX, CLIP, "reused", 0.0, "k"))


def test_lines_of_many_threads_stay_whole() -> None:
    pipe = Pipe()
    progress = EventProgress(pipe.writer)
    error = ImageError("x" * 150)

    def talk() -> None:
        for _ in range(50):
            progress.clip_finished(StageResult(StageName.MUX, CLIP, "failed", 0.0, error=error))

    threads = [threading.Thread(target=talk) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        pipe.events()
    assert len(pipe.events()) == 400


def test_heartbeats_do_not_make_a_wait_for_the_store_look_like_loading() -> None:
    pipe = Pipe()
    with EventProgress(pipe.writer, heartbeat_s=0.01) as progress:
        progress.loading(StageName.PREVIEW)
        progress.store_away(0.0, "refused")
        wait_until(lambda: Heartbeat() in pipe.events())
        progress.store_back(1.0)
        count = len(pipe.events())
        wait_until(lambda: any(isinstance(event, Loading) for event in pipe.events()[count:]))
    events = pipe.events()
    away, back = events.index(StoreAway(0.0, "refused")), events.index(StoreBack(1.0))
    assert not any(isinstance(event, Loading) for event in events[away:back])
