"""`magi2 airflow`: what an Airflow that was there before needs of this installation."""

from __future__ import annotations

import typer

from magi2.config.installed import installed_folder

app = typer.Typer(help="Where an Airflow finds the DAGs and pools.", no_args_is_help=True)


@app.command("dags-folder")
def dags_folder_command() -> None:
    """Print the folder of the DAG files, for AIRFLOW__CORE__DAGS_FOLDER or a DAG bundle."""
    typer.echo(installed_folder("dags"))


@app.command("pools")
def pools_command() -> None:
    """Print the file of the pools, for `airflow pools import`."""
    typer.echo(installed_folder("configs") / "deploy" / "pools.json")
