"""Entry point of `magi2`: gathers the commands, and turns every expected error into one line and an exit code."""

from __future__ import annotations

import logging
import sys

import typer
from rich.logging import RichHandler

from magi2 import __version__
from magi2.cli import (
    accept,
    airflow,
    batch,
    batches,
    catalog,
    checkpoint,
    compare,
    doctor,
    profile,
    provenance,
    render,
    report,
    rerun,
    schedule,
    status,
)
from magi2.cli.console import errors
from magi2.errors import InputError, Magi2Error

EXIT_INPUT = 2
EXIT_ERROR = 3

app = typer.Typer(
    name="magi2",
    help="Render lists of prompts to ten-second clips with sound, with MAGI-2 Preview.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("render")(render.render_command)
app.command("stage")(render.stage_command)
app.command("plan")(batches.plan_command)
app.command("gc")(batches.gc_command)
app.command("rerun")(rerun.rerun_command)
app.command("report")(report.report_command)
app.command("compare")(compare.compare_command)
app.command("marks")(provenance.marks_command)
app.command("explain")(provenance.explain_command)
app.command("status")(status.status_command)
app.command("verify")(catalog.verify_command)
app.command("doctor")(doctor.doctor_command)
app.command("accept")(accept.accept_command)
app.add_typer(airflow.app, name="airflow")
app.add_typer(batch.app, name="batch")
app.add_typer(profile.app, name="profile")
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(schedule.app, name="schedule")
app.add_typer(catalog.app, name="catalog")


@app.callback(invoke_without_command=True)
def common(
    context: typer.Context,
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Log what happens to stderr."),
    version: bool = typer.Option(False, "--version", help="Print the version and leave."),
) -> None:
    """Options before the command."""
    if version:
        typer.echo(f"magi2 {__version__}")
        raise typer.Exit
    logging.captureWarnings(True)  # of libraries: they are in the log that --verbose shows
    level = logging.INFO if verbose else logging.ERROR
    logging.basicConfig(level=level, format="%(message)s", handlers=[RichHandler(console=errors, show_path=False)])


def main() -> None:
    """Run the command line. Exit codes: 0 all good, 1 some clips failed, 2 bad input, 3 any other expected error."""
    try:
        app()
    except (Magi2Error, OSError) as error:  # a full disk or a folder of somebody else's needs no traceback either
        errors.print(f"error: {error}", style="red")
        sys.exit(EXIT_INPUT if isinstance(error, InputError) else EXIT_ERROR)


if __name__ == "__main__":
    main()
