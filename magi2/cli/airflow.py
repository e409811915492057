"""`magi2 airflow`: what an Airflow that was there before needs of this installation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import typer

from magi2.cli.airflow_api import AirflowApi
from magi2.cli.console import AS_JSON, print_json, results
from magi2.config.installed import installed_folder
from magi2.config.settings import Settings

app = typer.Typer(help="What an Airflow that was there before needs of this installation.", no_args_is_help=True)


@app.command("dags-folder")
def dags_folder_command() -> None:
    """Print the folder of the DAG files, for AIRFLOW__CORE__DAGS_FOLDER or a DAG bundle."""
    typer.echo(installed_folder("dags"))


@app.command("pools")
def pools_command() -> None:
    """Print the file of the pools, for `airflow pools import`."""
    typer.echo(installed_folder("configs") / "deploy" / "pools.json")


@app.command("setup")
def setup_command(
    cpu: int | None = typer.Option(None, "--cpu", min=1, help="Slots of magi2_cpu: stages without an accelerator."),
    gpu1: int | None = typer.Option(None, "--gpu1", min=1, help="Slots of magi2_gpu1: one for each GPU node."),
    gpu8: int | None = typer.Option(None, "--gpu8", min=1, help="Slots of magi2_gpu8: one for each GPU node."),
    as_json: bool = AS_JSON,
) -> None:
    """Create the pools that our DAGs need in the Airflow of MAGI2_AIRFLOW_URL. One that is there is left as it is,
    unless its size is given."""
    sizes = {"magi2_cpu": cpu, "magi2_gpu1": gpu1, "magi2_gpu8": gpu8}
    api = AirflowApi.of(Settings.from_environment())
    told = [{"pool": name, **_set_up(api, name, pool, sizes.get(name))} for name, pool in deployed_pools().items()]
    if as_json:
        print_json({"pools": told})
        return
    for row in told:
        results.print(f"{row['pool']:<12}{row['slots']} slots, {row['done']}")


def deployed_pools() -> dict[str, dict[str, Any]]:
    """The pools of our DAGs by name: slots, description, and whether deferred tasks count."""
    path = installed_folder("configs") / "deploy" / "pools.json"
    pools: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return pools


def find_pool(api: AirflowApi, name: str) -> dict[str, Any] | None:
    """A pool, None when Airflow has none of this name. Raises as `AirflowApi.ask` does."""
    return api.find(f"/api/v2/pools/{name}")


def _set_up(api: AirflowApi, name: str, pool: Mapping[str, object], slots: int | None) -> dict[str, object]:
    found = find_pool(api, name)
    if found is None:
        body = {**pool, "name": name, "slots": slots or pool["slots"]}
        api.ask("POST", "/api/v2/pools", body)
        return {"slots": body["slots"], "done": "created"}
    before = found["slots"]
    if slots is None or slots == before:
        return {"slots": before, "done": "there already"}
    changed = {"pool": name, "slots": slots, "include_deferred": found["include_deferred"]}
    api.ask("PATCH", f"/api/v2/pools/{name}", changed, params={"update_mask": "slots"})
    return {"slots": slots, "done": f"before {before}"}
