"""Following a run of the demonstration: a line that says how far it is, and patience for as long as anything moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from magi2.catalog import Catalog, catalog_url, open_catalog
from magi2.catalog.overview import Overview
from magi2.config.settings import Settings
from magi2.errors import InfrastructureError
from magi2.report.plain import duration
from magi2.report.status import BatchStatus, ShardStatus, batch_status
from magi2.runtime.watch import Limits
from tools.local_airflow import FINISHED

STALL_S = Limits().hang + 600.0
"""How long nothing at all may move. A stage that hangs is ended by its launcher before that, and its end is a move."""
_TICK_S = 1.0


class Runs(Protocol):
    """What is asked of Airflow. A question raises OSError when there is no answer now, but may be later."""

    def require_alive(self) -> None: ...

    def state(self, dag_id: str, run_id: str) -> str: ...

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]: ...


@dataclass(frozen=True)
class Standing:
    """How far a run is: its task instances as the REST API has them, and its batch once that is planned."""

    tasks: Sequence[Mapping[str, Any]]
    batch: BatchStatus | None

    @property
    def moves(self) -> object:
        """What differs whenever anything has moved; times alone do not count."""
        tasks = sorted(
            (task["task_id"], task["map_index"], task["try_number"], str(task["state"])) for task in self.tasks
        )
        return tasks, self.batch and (self.batch.counts.clips, [_place(shard) for shard in self.batch.shards])

    @property
    def milestone(self) -> object:
        """What a log gets a line for: a task, stage or clip that begins or ends, and a tenth of a clip's steps."""
        if self.batch is None:
            return self._at_work
        shards = [
            (each.shard, each.stage, each.position and each.position.clip_id, _tenths(each)) for each in self._shards
        ]
        clips = self.batch.counts.clips
        return clips.done, clips.failed, shards or self._at_work

    def __str__(self) -> str:
        if self.batch is None:
            return self._at_work
        clips = self.batch.counts.clips
        counts = [f"{clips.done} of {self.batch.batch.clips_total} clips done"]
        counts += [f"{clips.failed} failed"] if clips.failed else []
        left = [f"{duration(self.batch.seconds_left)} left"] if self.batch.seconds_left is not None else []
        return "; ".join([*counts, *(map(_shard_text, self._shards) if self._shards else [self._at_work]), *left])

    @property
    def _shards(self) -> list[ShardStatus]:
        """Those that a stage works on."""
        shards = self.batch.shards if self.batch else ()
        return [shard for shard in shards if shard.stage and shard.counts.clips.unfinished]

    @property
    def _at_work(self) -> str:
        running = {task["task_id"] for task in self.tasks if task["state"] == "running"}
        return ", ".join(sorted(running)) or "waiting for a task to start"


def _place(shard: ShardStatus) -> tuple[object, ...]:
    at, counts = shard.position, shard.counts
    step = at and (at.clip_id, at.step)
    return shard.shard, shard.stage, step, counts.clips.done, counts.clips.failed, counts.accelerator_seconds


def _tenths(shard: ShardStatus) -> int:
    at = shard.position
    return 10 * at.step // at.steps if at and at.steps else 0


def _shard_text(shard: ShardStatus) -> str:
    text = f"shard {shard.shard} {shard.stage}"
    if (at := shard.position) is not None:
        text += f", step {at.step} of {at.steps}"
        if shard.seconds_left is None and at.steps_per_second:
            text += f", {duration((at.steps - at.step) / at.steps_per_second)} left of this clip"
    return text


class BatchReader:
    """Reads how far the batch of a run is, from the catalog of a deployment."""

    def __init__(self, settings: Settings, dag_id: str, run_id: str) -> None:
        self._url, self._run = catalog_url(settings), (dag_id, run_id)
        self._catalog: Catalog | None = None

    def __call__(self) -> BatchStatus | None:
        """The batch as it stands, None before it is planned. Raises: InfrastructureError without an answer."""
        self._catalog = self._catalog or open_catalog(self._url)
        found = Overview(self._catalog.database).batch_of_run(*self._run)
        return batch_status(self._catalog, found[0], None, at=datetime.now(UTC)) if found else None


class LiveLine:
    """One line about a run: rewritten in place on a terminal, elsewhere a new one at every milestone."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._milestone: object = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, line: str, milestone: object) -> None:
        """Show the line; a log gets it only when the milestone is another than last time."""
        if self._console.is_terminal:
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
        elif milestone != self._milestone:
            self._console.print(line)
        self._milestone = milestone


def follow(
    airflow: Runs,
    dag_id: str,
    run_id: str,
    read_batch: Callable[[], BatchStatus | None],
    line: LiveLine,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Tell what the run does until it ends; its final state. There is no limit while anything moves.

    Raises: RuntimeError when one of Airflow's components has ended, or when nothing has moved for `STALL_S`.
    """
    moves, moved_at = None, clock()
    while True:
        airflow.require_alive()
        try:
            state = airflow.state(dag_id, run_id)
            if state in FINISHED:
                return state
            standing = Standing(airflow.tasks(dag_id, run_id), read_batch())
        except (OSError, InfrastructureError) as error:  # a busy machine
            line.show(f"no answer at the moment: {error}", "silence")
        else:
            line.show(str(standing), standing.milestone)
            if standing.moves != moves:
                moves, moved_at = standing.moves, clock()
        if clock() - moved_at > STALL_S:
            raise RuntimeError(f"run {run_id}: nothing has moved for {duration(STALL_S)}")
        sleep(_TICK_S)
