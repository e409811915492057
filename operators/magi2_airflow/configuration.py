"""The section [magi2] of Airflow's configuration: what the variables MAGI2_* say, in Airflow's own place."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

SECTION = "magi2"
OPTIONS = {
    "ckpt_root": "Folder of the published weights",
    "store": "A folder, or s3://bucket/prefix?endpoint=http://host:port",
    "catalog": "SQLAlchemy URL of the catalog's database",
    "inbox": "Folder whose new batch files start runs",
    "input_roots": "Further folders and prefixes of buckets, separated by a colon, from which runs read inputs",
    "configs": "Folder of profiles and architectures in place of the installed ones",
    "layout": "Ranks of preview and refiner, as in sp8.cfg1.ep4",
    "content_producer": "Whom delivered files name as the producer of their content",
    "label_font": "Font file of visible labels",
    "watermarks": "Names, separated by commas, of watermarks that profiles may ask for",
    "c2pa_certificate": "PEM file of the certificate that signs delivered clips",
    "c2pa_key": "PEM file of its private key",
    "c2pa_command": "A program that signs in its place, and its arguments: a JSON array",
    "c2pa_timestamp_url": "Time-stamp server that is asked for each signature",
    "quality": "YAML file with other thresholds of defects than the usual ones",
    "ffmpeg": "Path of ffmpeg, 5.1 or later",
    "price_per_accelerator_hour": "What an hour of one accelerator costs",
    "currency": "Its currency",
    "notify_conn_id": "Connection of a webhook that is told when a batch ends or needs somebody",
    "delivery_targets": "Where finished clips are brought, by name: JSON of folders and prefixes of buckets",
    "delivery_secrets": "Credentials of such targets, by name: JSON",
    "pe_base_url": "OpenAI-compatible endpoint that enhances prompts",
    "pe_model": "Its model",
    "pe_api_key": "Its credential",
}
"""Name and meaning; the variable of `store` is MAGI2_STORE."""
SENSITIVE = ("c2pa_command", "c2pa_timestamp_url", "catalog", "delivery_secrets", "pe_api_key")


def config_section() -> dict[str, Any]:
    """The section as a provider declares it."""
    options = {
        name: {
            "description": f"{meaning}. The environment variable MAGI2_{name.upper()} wins over it.",
            "version_added": None,
            "type": "string",
            "example": None,
            "default": None,
            **({"sensitive": True} if name in SENSITIVE else {}),
        }
        for name, meaning in OPTIONS.items()
    }
    return {SECTION: {"description": "Where the MAGI-2 renderer finds and keeps things", "options": options}}


def export_section(read: Callable[[str], str | None]) -> None:
    """Set MAGI2_* to the section's values where the environment says nothing: stages run in processes of their own.

    `read` gives an option's value, None for one that is not set.
    """
    for name in OPTIONS:
        value = read(name)
        if value and not os.environ.get(f"MAGI2_{name.upper()}"):
            os.environ[f"MAGI2_{name.upper()}"] = value
