"""`magi2 catalog` and `magi2 verify`: the database beside the store, and whether the two agree."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from magi2.cli.console import AS_JSON, print_json, results
from magi2.config.settings import Settings

if TYPE_CHECKING:
    from magi2.catalog.compare import Problem
    from magi2.deployment import Deployment

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


def verify_command(
    digests: bool = typer.Option(True, help="Compare every payload with its SHA-256, which reads every byte."),
    made_by: bool = typer.Option(False, "--made-by", help="Only list what other versions than these here have made."),
    as_json: bool = AS_JSON,
) -> None:
    """Check that every manifest's files and every reference image are there and whole, and that store and catalog say
    the same; list what is in quarantine, which is no problem any more.
    """
    from magi2.batches.images import image_digests
    from magi2.catalog.verify import verify
    from magi2.deployment import Deployment

    deployment = Deployment.from_environment()
    if made_by:
        _list_others(deployment, as_json)
        return
    problems = []
    for problem in verify(deployment.store, deployment.catalog, digests=digests):
        problems.append(problem)
        if not as_json:
            _print_problem(problem)
    artifacts = sum(number for number, _ in deployment.catalog.artifacts.totals().values())
    images, condemned = sum(1 for _ in image_digests(deployment.store)), list(deployment.store.condemned())
    if as_json:
        found = {
            "problems": [asdict(problem) for problem in problems],
            "quarantine": [each.to_json() for each in condemned],
        }
        print_json({"artifacts": artifacts, "images": images, **found})
    else:
        for each in condemned:
            results.print(f"{'quarantine':<12}{each.place}: {each.what}, {each.at:%Y-%m-%d %H:%M} UTC: {each.why}")
        held = f"{images} reference images, {len(condemned)} in quarantine"
        results.print(f"{artifacts} artifacts in the catalog, {held}, {len(problems)} problems")
    if problems:
        raise typer.Exit(1)


def _list_others(deployment: Deployment, as_json: bool) -> None:
    from magi2.catalog.verify import made_by_others
    from magi2.stages.software import here

    this = here(deployment.settings)
    others = list(made_by_others(deployment.store, deployment.catalog, this))
    if as_json:
        print_json({"here": this, "others": [{"place": place, "differs": text} for place, text in others]})
        return
    for place, text in others:
        results.print(f"{place}: {text}")
    results.print(f"{len(others)} artifacts of another set than " + ", ".join(f"{k} {v}" for k, v in this.items()))


def _print_problem(problem: Problem) -> None:
    line = f"{problem.kind.value:<12}{problem.place}: {problem.message}"
    results.print(line, style="red")
