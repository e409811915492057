"""Where the page lies: for what loads it, and for what only leads there and must not load it."""

from __future__ import annotations

from pathlib import Path

MOUNT = "/renders"
"""Where Airflow's server has the routes."""
READY = f"{MOUNT}/ready"
"""Where tasks, which have no login, ask whether Airflow has what our DAGs need; as open as Airflow's own health."""
STATIC = Path(__file__).parent / "renders" / "static"
"""The bundle."""
