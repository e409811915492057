"""`magi2 rerun`: start a batch again through Airflow's API, in part and with changed settings."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import typer

from magi2.cli.airflow_api import start_run
from magi2.cli.console import AS_JSON, print_json, results
from magi2.config.strict import nearest
from magi2.errors import InputError
from magi2.types import StageName

if TYPE_CHECKING:
    from magi2.deployment import Deployment


def rerun_command(
    batch: str = typer.Argument(help="Id of a planned batch."),
    from_stage: str = typer.Option("enhance", "--from", help="First stage that may be made again."),
    overrides: list[str] = typer.Option([], "--set", help="Change a value of every profile, as in refiner.steps=8."),
    only: list[str] = typer.Option([], "--only", help="failed, or a clip id; may be given several times."),
    failure_limit: int = typer.Option(0, "--failure-limit", min=0, help="Failed clips that the run tolerates."),
    as_json: bool = AS_JSON,
) -> None:
    """Run a batch again. With --set the changed stages are made; without, stages from --from on are made again and
    their digests compared with what is stored."""
    from magi2.batches.rerun import DAG_ID, FAILED, rerun_conf
    from magi2.deployment import Deployment

    stages = [stage.value for stage in StageName]
    if from_stage not in stages:
        raise InputError(f"unknown stage {from_stage!r}", hint=nearest(from_stage, stages))
    deployment = Deployment.from_environment()
    _check(deployment, batch, only, overrides, StageName(from_stage))
    retrying = FAILED in only and not overrides
    conf = rerun_conf(
        batch,
        only=only,
        overrides=overrides,
        from_stage=None if retrying else StageName(from_stage),
        failure_limit=failure_limit,
    )
    run_id = start_run(deployment.settings, DAG_ID, conf)
    if as_json:
        print_json({"dag_id": DAG_ID, "run_id": run_id})
    else:
        results.print(f"{DAG_ID} {run_id} started", highlight=False, soft_wrap=True)


def _check(deployment: Deployment, batch: str, only: list[str], overrides: list[str], from_stage: StageName) -> None:
    """Everything the run would refuse is refused here, where the user sees it at once."""
    from magi2.batches.documents import load_batch
    from magi2.batches.rerun import check_first_stage, rerun_batch

    store = deployment.store_to_render(dry_run=True)
    with TemporaryDirectory() as scratch:
        rerun_batch(store, batch, only=only, overrides=overrides, scratch=Path(scratch))
    document = load_batch(store, batch)
    before = [document.profile(digest) for digest in document.profiles]
    check_first_stage(before, overrides, from_stage, deployment.recipe_book)
