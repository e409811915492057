"""What tasks import, imported before there is a task: a process that is forked for one has it then."""

from __future__ import annotations

from importlib import import_module

TASKS_NEED = (
    "airflow.providers.common.io.assets.file",
    "airflow.providers.standard.decorators.python",
    "jinja2.ext",
    "magi2.jobs.launch",
    "magi2.jobs.recorder",
    "magi2.jobs.run",
    "magi2.runtime.store_wait",
    "magi2_airflow.plan",
    "magi2_airflow.report",
    "magi2_airflow.stages",
)
"""Modules that load no torch, and with which come all the others that a task has when its stage's group starts."""


def import_for_tasks() -> None:
    """Import them: half a second of every task's otherwise."""
    for name in TASKS_NEED:
        import_module(name)
