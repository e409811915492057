"""`magi2 status`: how far batches are, once or live."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from magi2.cli.console import AS_JSON, errors, print_json, results, warn_of_mismatch
from magi2.errors import InputError, Magi2Error
from magi2.report.plain import duration, plain

if TYPE_CHECKING:
    from magi2.catalog import Catalog
    from magi2.config.price import Price
    from magi2.deployment import Deployment
    from magi2.report.status import BatchStatus, ShardStatus

logger = logging.getLogger(__name__)

REFRESH_S = 2.0
SHARD_COLUMNS = ("shard", "profile", "stage", "done", "failed", "clip", "step", "rate", "time left", "cost")
BATCH_COLUMNS = ("batch", "name", "state", "done", "failed", "time left", "cost")


def status_command(
    batch: str | None = typer.Argument(None, help="Id of a batch; without one, the newest batches."),
    watch: bool = typer.Option(False, "--watch", "-w", help="Stay and follow, until the batch has ended."),
    limit: int = typer.Option(20, "--limit", min=1, help="How many batches, when none is named."),
    as_json: bool = AS_JSON,
) -> None:
    """Show how far a batch is: each shard's stage, clip, step, rate, time left and cost; or the newest batches."""
    from magi2.deployment import Deployment

    if watch and as_json:
        raise InputError("--watch and --json exclude each other", hint="call --json as often as you like")
    deployment = Deployment.from_environment()
    catalog, price = deployment.catalog, deployment.price
    _settle_lost(deployment)
    found = _read(catalog, batch, price, limit)
    warn_of_mismatch(deployment)
    if as_json:
        print_json(found[0].to_json() if batch else _overview_values(deployment, found))
    elif watch and results.is_terminal:
        _follow(catalog, batch, price, limit)
    else:
        if watch:
            errors.print("there is no terminal here, so --watch shows the state once", style="yellow")
        results.print(_view(found, batch is not None, price))
        if batch is None:
            _print_artifacts(deployment)


def _settle_lost(deployment: Deployment) -> None:
    """Batches of commands that were killed here are shown as what they are; a store that is away is told of below."""
    if not deployment.catalog.batches.unfinished_by_hand():
        return  # as nearly always: what would settle them takes long to import
    from magi2.jobs.by_hand import settle_lost

    try:
        settle_lost(deployment)
    except Magi2Error as error:
        logger.info("batches without a process are not settled: %s", error)


def _read(catalog: Catalog, batch: str | None, price: Price | None, limit: int) -> list[BatchStatus]:
    from magi2.report.status import batch_status, recent_batches

    now = datetime.now(UTC)
    if batch is not None:
        return [batch_status(catalog, batch, price, at=now)]
    return recent_batches(catalog, price, limit=limit, at=now)


def _overview_values(deployment: Deployment, found: Sequence[BatchStatus]) -> dict[str, object]:
    totals = deployment.catalog.artifacts.totals()
    artifacts = {stage: {"artifacts": number, "size_bytes": size} for stage, (number, size) in totals.items()}
    held = _quarantine(deployment)
    quarantine = None if held is None else {"count": held[0], "size_bytes": held[1]}
    return {"batches": [each.to_json() for each in found], "artifacts": artifacts, "quarantine": quarantine}


def _print_artifacts(deployment: Deployment) -> None:
    for stage, (number, size) in deployment.catalog.artifacts.totals().items():
        results.print(f"{stage:<10}{number} artifacts, {size / 1e9:.3f} GB")
    held = _quarantine(deployment)
    if held and held[0]:
        results.print(f"quarantine {held[0]} damaged, {held[1] / 1e9:.3f} GB; magi2 verify lists them", style="yellow")


def _quarantine(deployment: Deployment) -> tuple[int, int] | None:
    """How many things are in quarantine and their bytes; None, and a line that says why, when the store is away."""
    try:
        sizes = [each.size_bytes for each in deployment.store.condemned()]
    except Magi2Error as error:
        errors.print(f"nobody knows what is in quarantine: {error}", style="yellow")
        return None
    return len(sizes), sum(sizes)


def _follow(catalog: Catalog, batch: str | None, price: Price | None, limit: int) -> None:
    """A table that is drawn anew until the batch, or every one that is shown, has ended, or somebody interrupts."""
    with Live(console=results, auto_refresh=False) as live:
        while True:
            found = _read(catalog, batch, price, limit)
            live.update(_view(found, batch is not None, price), refresh=True)
            if all(each.is_finished for each in found):
                return
            time.sleep(REFRESH_S)


def _view(found: Sequence[BatchStatus], with_shards: bool, price: Price | None) -> Group | Table | Text:
    if not with_shards:
        return _table(BATCH_COLUMNS, [_batch_cells(each, price) for each in found])
    status = found[0]
    return Group(
        Text(_headline(status, price)),
        *(Text(f"  failed: {_one_line(str(group))}: {group.first}") for group in status.failure_groups),
        _table(SHARD_COLUMNS, [_shard_cells(each, price) for each in status.shards]),
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table | Text:
    """A table for a terminal; elsewhere lines of aligned text, never folded, for pipes and logs."""
    if results.is_terminal:
        table = Table(*(Column(name, no_wrap=True) for name in columns), box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        return table
    lines = [columns, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(columns))]
    return Text("\n".join("  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)).rstrip() for line in lines))


def _headline(status: BatchStatus, price: Price | None) -> str:
    batch = status.batch
    asked = f", asked to {batch.requested}" if batch.requested else ""
    asked += f": {plain(status.paused_because)}" if status.paused_because else ""
    counts = status.counts
    clips = ", ".join(f"{count} {state}" for state, count in counts.clips.by_state.items() if count) or "no clips"
    parts = [clips]
    parts += [str(status.failures)] if status.failures.failed else []
    parts += [f"{counts.found} of them finished before"] if counts.found else []
    parts += [f"{_time(status.seconds_left)} left"] if status.seconds_left is not None else []
    parts += [f"{counts.accelerator_seconds:,.0f} accelerator-seconds", _money(status.cost, price)]
    return f"{batch.batch_id} {_one_line(batch.name)}: {batch.state}{asked}\n" + "; ".join(filter(None, parts))


def _batch_cells(status: BatchStatus, price: Price | None) -> list[str]:
    batch = status.batch
    clips = status.counts.clips
    failures = status.failures
    done, failed = f"{clips.done}/{batch.clips_total}", f"{failures.failed}/{failures.limit}" if failures.failed else ""
    cells = [batch.batch_id, _one_line(batch.name)[:40], _state(status), done, failed]
    return [*cells, _time(status.seconds_left), _money(status.cost, price)]


def _state(status: BatchStatus) -> str:
    return "stopped" if status.failures.is_stopped else str(status.batch.requested or status.batch.state)


def _shard_cells(shard: ShardStatus, price: Price | None) -> list[str]:
    clips, position = shard.counts.clips, shard.position
    clip = position.clip_id[:12] if position else ""
    step = f"{position.step}/{position.steps}" if position else ""
    rate = f"{position.steps_per_second:.2f}/s" if position and position.steps_per_second else ""
    stage = shard.stage or ("waiting" if clips.unfinished else "")
    return [
        *(str(shard.shard), shard.profile, stage, f"{clips.done}/{clips.total}", str(clips.failed or "")),
        *(clip, step, rate, _time(shard.seconds_left) if clips.unfinished else "", _money(shard.cost, price)),
    ]


def _time(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)


def _money(cost: float | None, price: Price | None) -> str:
    return price.text(cost) if price and cost is not None else ""


def _one_line(text: str) -> str:
    return " ".join(plain(text).split())
