"""Entry point of `magi2`: gathers the commands, and turns every expected error into one line and an exit code."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import Any

import typer
from rich.logging import RichHandler
from typer.core import TyperGroup
from typer.main import get_command_from_info, get_group_from_info
from typer.models import CommandInfo, TyperInfo

from magi2 import __version__
from magi2.cli.console import errors
from magi2.errors import InputError, Magi2Error

EXIT_INPUT = 2
EXIT_ERROR = 3

COMMANDS = {
    "render": "render:render_command",
    "stage": "render:stage_command",
    "plan": "batches:plan_command",
    "gc": "batches:gc_command",
    "rerun": "rerun:rerun_command",
    "report": "report:report_command",
    "compare": "compare:compare_command",
    "marks": "provenance:marks_command",
    "explain": "provenance:explain_command",
    "status": "status:status_command",
    "verify": "catalog:verify_command",
    "doctor": "doctor:doctor_command",
    "accept": "accept:accept_command",
    "airflow": "airflow:app",
    "batch": "batch:app",
    "profile": "profile:app",
    "checkpoint": "checkpoint:app",
    "schedule": "schedule:app",
    "catalog": "catalog:app",
}
"""Each command's module and what it is there, a function or commands of its own; in the order of the help."""


class Commands(TyperGroup):
    """The commands; a module is imported when one of its commands is asked for."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        names: Any = dict.fromkeys(COMMANDS)
        self.commands = names  # for the list of commands, and what a mistyped one is compared with

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name, None when there is none."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        found = getattr(import_module(f"magi2.cli.{module}"), name)
        if isinstance(found, typer.Typer):
            return get_group_from_info(TyperInfo(found), suggest_commands=True, **_STYLE)
        return get_command_from_info(CommandInfo(cmd_name, callback=found), **_STYLE)


_STYLE: dict[str, Any] = {"pretty_exceptions_short": False, "rich_markup_mode": None}
app = typer.Typer(
    name="magi2",
    cls=Commands,
    help="Render lists of prompts to ten-second clips with sound, with MAGI-2 Preview.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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
