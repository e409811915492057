"""Following the demonstration's run: patience, what counts as a move, and the line that tells of it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from magi2.catalog import ClipState, RunState
from magi2.catalog.counts import BatchCounts, Counting
from magi2.catalog.shards import ShardPosition
from magi2.errors import InfrastructureError
from magi2.report.status import BatchStatus, ShardStatus
from magi2.types import StageName
from tools.demo_progress import STALL_S, LiveLine, Standing, follow

TASK = {"task_id": "shard.preview", "map_index": 0, "try_number": 1, "state": "running"}


def counts(*, done: int = 0, failed: int = 0, running: StageName = StageName.PREVIEW) -> BatchCounts:
    """Of six clips."""
    counting = Counting()
    states = {ClipState.DONE: done, ClipState.FAILED: failed, ClipState.RUNNING: 6 - done - failed}
    for state, number in states.items():
        counting.add_clips(state, [running], number)
    counting.add_runs(running, RunState.RUNNING, clip_state=ClipState.RUNNING)
    return counting.result()


def shard(
    stage: StageName = StageName.PREVIEW, *, clip: str = "a", step: int | None = 4, left: float | None = None, **of: int
) -> ShardStatus:
    """A shard whose stage has come to a step of 20, or is one without steps."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    position = step and ShardPosition(
        shard=0, stage=stage, attempt=1, clip_id=clip * 64, step=step, steps=20, steps_per_second=0.5, at=at
    )
    numbers = counts(running=stage, **of)  # type: ignore[arg-type]
    return ShardStatus(shard=0, profile="demo", counts=numbers, position=position or None, seconds_left=left, cost=None)


def batch(*shards: ShardStatus, done: int = 0, seconds_left: float | None = None) -> BatchStatus:
    return BatchStatus(
        batch=SimpleNamespace(clips_total=6),  # type: ignore[arg-type]
        counts=counts(done=done),
        seconds_left=seconds_left,
        cost=None,
        shards=shards,
    )


Answer = Standing | Exception | str


class Site:
    """Airflow and catalog that give one answer after another, and a clock that goes on by `tick_s` with each."""

    def __init__(self, answers: Iterator[Answer], tick_s: float) -> None:
        self._answers, self._tick_s = answers, tick_s
        self._now: Answer = ""
        self.time = 0.0

    def require_alive(self) -> None: ...

    def state(self, dag_id: str, run_id: str) -> str:
        self._now = next(self._answers)
        if isinstance(self._now, Exception):
            raise self._now
        return self._now if isinstance(self._now, str) else "running"

    def tasks(self, dag_id: str, run_id: str) -> Any:
        assert isinstance(self._now, Standing)
        return self._now.tasks

    def read_batch(self) -> BatchStatus | None:
        assert isinstance(self._now, Standing)
        return self._now.batch

    def sleep(self, seconds: float) -> None:
        self.time += self._tick_s

    def follow(self, console: Console | None = None) -> str:
        with LiveLine(console or Console(file=io.StringIO())) as line:
            return follow(self, "dag", "run", self.read_batch, line, clock=lambda: self.time, sleep=self.sleep)


def test_run_has_no_limit_while_anything_moves() -> None:
    steps = (Standing([TASK], batch(shard(step=step))) for step in range(20))
    site = Site(chain(steps, ["success"]), tick_s=STALL_S * 0.9)
    assert site.follow() == "success"
    assert site.time > 15 * STALL_S


@pytest.mark.parametrize(
    "stuck",
    [
        Standing([TASK], None),
        Standing([TASK], batch(shard())),
        ConnectionError("503"),
        InfrastructureError("the catalog is locked"),
    ],
    ids=str,
)
def test_run_in_which_nothing_moves_is_given_up_after_a_long_time(stuck: Answer) -> None:
    site = Site(repeat(stuck), tick_s=60.0)
    with pytest.raises(RuntimeError, match=r"nothing has moved for \d+ min"):
        site.follow()
    assert STALL_S < site.time <= STALL_S + 60.0


def test_time_left_that_shrinks_is_no_move() -> None:
    later = (Standing([TASK], batch(shard(), seconds_left=9000.0 - number)) for number in range(9000))
    with pytest.raises(RuntimeError, match="nothing has moved"):
        Site(later, tick_s=60.0).follow()


def test_answer_that_fails_for_a_time_ends_nothing() -> None:
    busy = repeat(TimeoutError("timed out"), 10)
    assert Site(chain([Standing([TASK], None)], busy, ["failed"]), tick_s=60.0).follow() == "failed"


def test_airflow_that_has_ended_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Site) -> None:
        raise RuntimeError("scheduler ended")

    monkeypatch.setattr(Site, "require_alive", refuse)
    site = Site(repeat(Standing([TASK], None)), tick_s=1.0)
    with pytest.raises(RuntimeError, match="scheduler ended"):
        site.follow()
    assert site.time == 0.0


@pytest.mark.parametrize(
    "moved",
    [
        Standing([{**TASK, "state": "up_for_retry"}], batch(shard())),
        Standing([{**TASK, "try_number": 2}], batch(shard())),
        Standing([TASK, {**TASK, "map_index": 1}], batch(shard())),
        Standing([TASK], None),
        Standing([TASK], batch(shard(step=5))),
        Standing([TASK], batch(shard(clip="b"))),
        Standing([TASK], batch(shard(StageName.DECODE))),
        Standing([TASK], batch(shard(failed=1))),
        Standing([TASK], batch(shard(), done=1)),
    ],
)
def test_task_stage_clip_and_step_all_count_as_moves(moved: Standing) -> None:
    assert moved.moves != Standing([TASK], batch(shard())).moves


@pytest.mark.parametrize(
    ("standing", "said"),
    [
        (Standing([], None), "waiting for a task to start"),
        (Standing([{**TASK, "task_id": "plan"}], None), "plan"),
        (
            Standing([TASK], batch(shard())),
            "0 of 6 clips done; shard 0 preview, step 4 of 20, 32.0 s left of this clip",
        ),
        (
            Standing([TASK], batch(shard(left=90.0), done=2, seconds_left=100.0)),
            "2 of 6 clips done; shard 0 preview, step 4 of 20; 1 min 40 s left",
        ),
        (
            Standing([TASK], batch(shard(StageName.MUX, step=None), done=5)),
            "5 of 6 clips done; shard 0 mux",
        ),
        (Standing([{**TASK, "task_id": "report"}], batch(done=6)), "6 of 6 clips done; report"),
    ],
)
def test_line_says_stage_step_and_time_left(standing: Standing, said: str) -> None:
    assert str(standing) == said


def test_log_has_a_line_for_each_stage_clip_and_tenth_of_the_steps_and_no_more() -> None:
    def at(**values: Any) -> Standing:
        return Standing([TASK], batch(shard(**values)))

    answers = [at(step=4), at(step=4), at(step=5), at(step=6), at(stage=StageName.DECODE, step=None)]
    file = io.StringIO()
    Site(chain(answers, ["success"]), tick_s=1.0).follow(Console(file=file, width=200))
    lines = file.getvalue().splitlines()
    assert [line.partition(", ")[0] + line.partition("step ")[2][:2] for line in lines] == [
        "0 of 6 clips done; shard 0 preview4 ",
        "0 of 6 clips done; shard 0 preview6 ",
        "0 of 6 clips done; shard 0 decode",
    ]


def test_terminal_shows_every_step_in_one_place() -> None:
    answers = [Standing([TASK], batch(shard(step=step))) for step in (4, 5, 6)]
    file = io.StringIO()
    Site(chain(answers, ["success"]), tick_s=1.0).follow(Console(file=file, width=200, force_terminal=True))
    assert all(f"step {step} of 20" in file.getvalue() for step in (4, 5, 6))
    assert file.getvalue().count("\n") <= 1  # the last, when it ends
