"""What is imported before tasks are forked."""

from __future__ import annotations

import sys

from magi2_airflow.ahead import TASKS_NEED
from magi2_airflow.plugin import RendersPlugin
from tests.import_rules.reading import HEAVY, loaded_with


def test_a_process_that_loads_plugins_has_what_its_tasks_import() -> None:
    RendersPlugin.on_load()
    assert not set(TASKS_NEED) - sys.modules.keys()


def test_nothing_heavy_is_imported_ahead() -> None:
    ours = [name for name in TASKS_NEED if name.startswith("magi2")]
    assert ours and not [name for name in ours if (HEAVY - {"airflow"}) & loaded_with(name).keys()]
