"""The command line as a whole."""

from __future__ import annotations

import subprocess
import sys

import pytest

from magi2.cli.main import COMMANDS, Commands


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_found_where_it_is_said_to_be(name: str) -> None:
    command = Commands(name="magi2").get_command(None, name)
    assert command is not None and command.get_short_help_str()


def test_a_name_that_is_no_command_is_none() -> None:
    assert Commands(name="magi2").get_command(None, "statu") is None


@pytest.mark.slow
def test_a_command_imports_no_other_commands_and_nothing_that_it_does_not_need() -> None:
    code = (
        "import sys, magi2.cli.main, magi2.cli.status, magi2.deployment, magi2.report.status\n"
        "dear = {'magi2.acceptance', 'magi2.batches.schema', 'magi2.cli.render', 'magi2.prompts', 'alembic', 'httpx'}\n"
        "assert not dear & set(sys.modules), dear & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
