"""`magi2 report`: a batch as a folder to share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from magi2.cli.console import AS_JSON, errors, print_json, results, warn_of_mismatch
from magi2.errors import ConfigError, InfrastructureError, InputError

if TYPE_CHECKING:
    from magi2.deployment import Deployment

CLIP_FILES = ("copy", "link", "none")


def report_command(
    batch: str = typer.Argument(help="Id of a planned batch."),
    out: Path = typer.Option(..., "--out", "-o", help="Folder for the page, its pictures and clips."),
    clips: str = typer.Option("copy", "--clips", help="copy the clips, link to the store (a week's links), or none."),
    as_json: bool = AS_JSON,
) -> None:
    """Write a page of the batch that works from a disk: clips, failures, timings and cost, also as JSON and CSV."""
    from magi2.batches.documents import load_batch
    from magi2.config.strict import nearest
    from magi2.deployment import Deployment
    from magi2.report.export import export_report

    if clips not in CLIP_FILES:
        raise InputError(
            f"--clips is {clips!r}, must be one of {', '.join(CLIP_FILES)}", hint=nearest(clips, CLIP_FILES)
        )
    deployment = Deployment.from_environment()
    load_batch(deployment.store, batch)  # before anything is said of one that is not there
    warn_of_mismatch(deployment)
    known = _known(deployment, batch)
    exported = export_report(
        deployment.store,
        batch,
        out,
        clips=clips,  # type: ignore[arg-type]
        thresholds=deployment.thresholds,
        **known,
    )
    if as_json:
        print_json({"page": str(exported.page), "clips": exported.clips, "missing": list(exported.missing)})
        return
    results.print(f"{exported.page}: {exported.clips} clips")
    for clip_id in exported.missing:
        errors.print(f"clip {clip_id[:12]}: its file could not be had, the page says why", style="red")


def _known(deployment: Deployment, batch: str) -> dict[str, Any]:
    """What the catalog says that the batch took, made, and may lose; nothing, and a line that says so, when it does not
    answer.
    """
    from magi2.catalog.cost import BatchCost

    try:
        catalog = deployment.catalog
        if record := catalog.batches.get(batch):
            cost = BatchCost.from_seconds(catalog.runs.accelerator_seconds(batch), deployment.price)
            return {"cost": cost, "made": catalog.runs.made(batch), "failure_limit": record.failure_limit}
        reason = "the catalog does not know the batch (magi2 catalog rebuild)"
    except (ConfigError, InfrastructureError) as error:
        reason = str(error)
    errors.print(f"no accelerator-seconds and no cost: {reason}", style="yellow")
    return {}
