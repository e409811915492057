"""`magi2 catalog` and `magi2 verify`: the database beside the store, and whether the two agree."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from magi2.cli.console import AS_JSON, print_json, results, warn_of_mismatch
from magi2.config.settings import Settings

if TYPE_CHECKING:
    from magi2.catalog import BatchProgress
    from magi2.catalog.compare import Problem

app = typer.Typer(help="Look after the catalog of batches, clips and artifacts.", no_args_is_help=True)


@app.command("migrate")
def migrate_command() -> None:
    """Create or upgrade the catalog's tables; safe at any time and from many machines at once."""
    from magi2.catalog.engine import Database, catalog_url
    from magi2.catalog.migrate import migrate
    from magi2.catalog.tables import REVISION

    url = catalog_url(Settings.from_environment())
    migrate(url)
    results.print(f"{Database(url).place}: tables of version {REVISION}")


@app.command("rebuild")
def rebuild_command(
    force: bool = typer.Option(False, "--force", help="Even if the store is another one or misses delivered clips."),
    as_json: bool = AS_JSON,
) -> None:
    """Make the catalog again from the manifests and batch documents in the store."""
    from magi2.catalog.rebuild import rebuild
    from magi2.deployment import Deployment

    deployment = Deployment.from_environment()
    report = rebuild(deployment.store, deployment.catalog, force=force)
    if as_json:
        print_json(asdict(report))
    else:
        for problem in report.problems:
            _print_problem(problem)
        line = (
            f"{report.artifacts} artifacts, {report.batches} batches, {report.clips} clips; "
            f"taken out: {report.artifacts_forgotten} artifacts; "
            f"kept without documents: {report.batches_unproven} batches; unreadable: {len(report.problems)}"
        )
        results.print(line)
    if report.problems:
        raise typer.Exit(1)


@app.command("show")
def show_command(
    batch_id: str | None = typer.Argument(None, help="A batch; without one, the newest batches and all artifacts."),
    limit: int = typer.Option(20, "--limit", min=1, help="How many batches."),
    as_json: bool = AS_JSON,
) -> None:
    """Print the newest batches, or how far one is."""
    from magi2.deployment import Deployment

    deployment = Deployment.from_environment()
    catalog = deployment.catalog
    warn_of_mismatch(deployment)
    if batch_id is not None:
        progress = catalog.batches.progress(batch_id)
        print_json(_progress_values(progress)) if as_json else _print_progress(progress)
        return
    page = catalog.batches.search(limit=limit)
    counts = catalog.batches.clip_counts([batch.batch_id for batch in page.rows])
    totals = catalog.artifacts.totals()
    if as_json:
        batches = [
            {"batch_id": batch.batch_id, "name": batch.name, "state": batch.state, "clips": counts[batch.batch_id]}
            for batch in page.rows
        ]
        artifacts = {stage: asdict(total) for stage, total in totals.items()}
        print_json({"batches": batches, "batches_total": page.total, "artifacts": artifacts})
        return
    table = Table("batch", "name", "state", "created", "clips")
    for batch in page.rows:
        clips = ", ".join(f"{count} {state}" for state, count in counts[batch.batch_id].items() if count)
        table.add_row(batch.batch_id, batch.name, batch.state, f"{batch.created_at:%Y-%m-%d %H:%M} UTC", clips)
    results.print(table)
    for stage, total in totals.items():
        line = f"{stage:<10}{total.artifacts} artifacts, {total.size_bytes / 1e9:.3f} GB"
        results.print(line)


def verify_command(
    digests: bool = typer.Option(True, help="Compare every payload with its SHA-256, which reads every byte."),
    as_json: bool = AS_JSON,
) -> None:
    """Check that every manifest's files are there and whole, and that store and catalog say the same."""
    from magi2.catalog.verify import verify
    from magi2.deployment import Deployment

    deployment = Deployment.from_environment()
    problems = []
    for problem in verify(deployment.store, deployment.catalog, digests=digests):
        problems.append(problem)
        if not as_json:
            _print_problem(problem)
    artifacts = sum(total.artifacts for total in deployment.catalog.artifacts.totals().values())
    if as_json:
        print_json({"artifacts": artifacts, "problems": [asdict(problem) for problem in problems]})
    else:
        results.print(f"{artifacts} artifacts in the catalog, {len(problems)} problems")
    if problems:
        raise typer.Exit(1)


def _print_problem(problem: Problem) -> None:
    line = f"{problem.kind.value:<12}{problem.place}: {problem.message}"
    results.print(line, style="red")


def _print_progress(progress: BatchProgress) -> None:
    batch = progress.batch
    clips = ", ".join(f"{count} {state}" for state, count in progress.clips.items() if count)
    asked = f", asked to {batch.requested}" if batch.requested else ""
    head = f"{batch.batch_id} {batch.name}: {batch.state}{asked}; {clips or 'no clips'}"
    results.print(head)
    columns = ("waiting", "running", "made", "reused", "failed", "cancelled")
    table = Table("stage", *columns, "seconds", "accelerator seconds", "peak GiB")
    for name, stage in progress.stages.items():
        peak = f"{stage.peak_memory_bytes / 2**30:.1f}" if stage.peak_memory_bytes else ""
        cells = [str(getattr(stage, column)) for column in columns]
        table.add_row(name, *cells, f"{stage.seconds:.1f}", f"{stage.accelerator_seconds:.1f}", peak)
    results.print(table)


def _progress_values(progress: BatchProgress) -> dict[str, object]:
    batch = progress.batch
    return {
        **asdict(batch),
        "created_at": batch.created_at.isoformat(),
        "finished_at": batch.finished_at.isoformat() if batch.finished_at else None,
        "clips": dict(progress.clips),
        "stages": {name: asdict(stage) for name, stage in progress.stages.items()},
        "accelerator_seconds": progress.accelerator_seconds,
    }
