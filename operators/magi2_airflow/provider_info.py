"""What `airflow providers list` shows, and the links that Airflow's server may look up."""

from __future__ import annotations

from typing import Any

NOTIFIERS = ("BatchFinished", "FailureLimitPassed")
LINKS = ("ClipsLink", "ManifestLink", "ReportLink", "LogLink")


def get_provider_info() -> dict[str, Any]:
    """Entry point `apache_airflow_provider`."""
    from magi2 import __version__
    from magi2_airflow.configuration import config_section

    return {
        "package-name": "magi2",
        "name": "MAGI-2",
        "description": "Batch renderer for MAGI-2 Preview: lists of prompts to ten-second clips with sound",
        "versions": [__version__],
        "extra-links": [f"magi2_airflow.links.{name}" for name in LINKS],
        "notifications": [f"magi2_airflow.notifiers.{name}" for name in NOTIFIERS],
        "config": config_section(),
    }
