"""Where the folders lie that belong to the packages: beside them in a checkout, inside them in a wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).resolve().parents[1]


def installed_folder(name: Literal["configs", "dags"]) -> Path:
    """The folder of profiles, architectures, negative prompts and pools, or that of the DAG files."""
    shipped = _PACKAGE / "shipped" / name
    return shipped if shipped.is_dir() else _PACKAGE.parent / name
