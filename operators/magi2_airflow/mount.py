"""Where the page lies: for what loads it, and for what only leads there and must not load it."""

from __future__ import annotations

from pathlib import Path

MOUNT = "/renders"
"""Where Airflow's server has the routes."""
STATIC = Path(__file__).parent / "renders" / "static"
"""The bundle."""
