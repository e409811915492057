"""`magi2 plan` and `magi2 gc`: what a batch would do, and what can go from the store."""

from __future__ import annotations

import typer

from magi2.cli.console import AS_JSON, errors, print_json, results
from magi2.types import StageName


def plan_command(
    file: str = typer.Argument(help="A batch file: .jsonl, .csv, .tsv, .json or .parquet, or its s3:// address."),
    profile: str = typer.Option("1080p", "--profile", help="Profile of rows that name none."),
    overrides: list[str] = typer.Option([], "--set", help="Change a value of every profile, as in refiner.steps=8."),
    on_bad_rows: str = typer.Option("refuse", "--on-bad-rows", help="refuse, or skip and count as failed."),
    budget: float | None = typer.Option(None, "--budget", help="What the batch may cost, in MAGI2_CURRENCY."),
    matrix: bool = typer.Option(
        False, "--matrix", help="Make choices {dusk|dawn} in prompts, of rows that say nothing."
    ),
    seeds: str | None = typer.Option(None, "--seeds", help="Seeds of rows that give none, as in 1,2,3."),
    as_json: bool = AS_JSON,
) -> None:
    """Dry run: clips, the first of them, equal rows, what the store has already, shards, the accelerator time still to
    spend and what it costs.
    """
    from magi2.batches.dry_run import dry_run
    from magi2.batches.intake import plan_location
    from magi2.batches.plan import BatchOptions
    from magi2.batches.spread import Spread, parse_seeds
    from magi2.deployment import Deployment
    from magi2.recipes.marking import producer_line

    deployment = Deployment.from_environment()
    store = deployment.store_to_render(dry_run=True)
    plan = plan_location(
        file,
        settings=deployment.settings,
        store=store,
        profile=profile,
        overrides=overrides,
        options=BatchOptions(on_bad_rows=on_bad_rows, budget=budget),  # type: ignore[arg-type]  # checked there
        spread=Spread(matrix, parse_seeds(seeds) if seeds else ()),
        told=deployment.told,
    )
    found = dry_run(plan, store, price=deployment.price)
    if as_json:
        print_json({**found.to_json(), "content_producer": deployment.settings.content_producer})
        return
    *before, last = found.lines()
    for line in (*before, producer_line(deployment.settings.content_producer), last):
        results.print(line)


def gc_command(
    stage: str = typer.Option("decode", "--stage", help="Stage whose artifacts may go."),
    days: float = typer.Option(7.0, "--days", help="Age after delivery and last use, in days."),
    batch: str | None = typer.Option(None, "--batch", help="Only what this batch made."),
    delete: bool = typer.Option(False, "--delete", help="Really remove; otherwise only say what would go."),
    as_json: bool = AS_JSON,
) -> None:
    """Remove old artifacts that no clip of a batch needs any more, and what has long been in quarantine; a dry run
    unless --delete is given.
    """
    from magi2.batches.retention import RetentionPolicy, collect_garbage
    from magi2.config.strict import nearest
    from magi2.deployment import Deployment
    from magi2.errors import InputError

    names = [name.value for name in StageName]
    if stage not in names:
        raise InputError(f"unknown stage {stage!r}", hint=nearest(stage, names))
    deployment = Deployment.from_environment()
    deployment.require_match(dry_run=not delete)
    policy = RetentionPolicy({StageName(stage): days}, batch, deployment.settings.lease_days)
    report = collect_garbage(deployment.store, policy=policy, dry_run=not delete)
    quarantine_days = deployment.settings.quarantine_days
    expired = deployment.store.expire_condemned(older_than_days=quarantine_days, dry_run=not delete)
    if as_json:
        removed = [[name.value, key] for name, key in report.removed]
        freed = {"dry_run": report.dry_run, "removed": removed, "freed_bytes": report.freed_bytes}
        print_json({**freed, "unreadable": sorted(report.unreadable), "expired": expired})
        return
    for reason in report.unreadable.values():
        errors.print(f"left out, with all that it names: {reason}", style="yellow")
    verb = "would remove" if report.dry_run else "removed"
    results.print(
        f"{verb} {len(report.removed)} {stage} artifacts, {report.freed_bytes / 1e9:.3f} GB; "
        f"{report.kept_needed} stay because a clip needs them"
    )
    if expired:
        results.print(f"{verb} {len(expired)} damaged from quarantine, after {quarantine_days:g} days there")
