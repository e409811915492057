"""Reads docker-compose.yml as compose does: variables filled in, anchors and merge keys resolved."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
COMPOSE = REPOSITORY / "docker-compose.yml"
AIRFLOW_ENV = REPOSITORY / "configs" / "deploy" / "airflow.env"
ENV_EXAMPLE = REPOSITORY / ".env.example"
WORKER_COMPOSE = REPOSITORY / "docker-compose.worker.yml"
WORKER_ENV_EXAMPLE = REPOSITORY / ".env.worker.example"

_VARIABLE = re.compile(r"\$(?:(?P<escaped>\$)|\{(?P<name>\w+)(?::(?P<kind>[-?])(?P<rest>[^}]*))?\})")


def env_lines(path: Path) -> dict[str, str]:
    """The `NAME=value` lines of an env file."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def example_environment(example: Path = ENV_EXAMPLE) -> dict[str, str]:
    """An example's variables with a value for each that has none and needs one."""
    shown = ("PRICE_PER_ACCELERATOR_HOUR", "CURRENCY", "NOTIFY_CONN_ID", "AIRFLOW_PUBLIC_URL")
    sizes = ("POOL_MAGI2_CPU", "POOL_MAGI2_GPU1", "POOL_MAGI2_GPU8", "CPU_WORKER_MEMORY", "GPU_WORKER_MEMORY")
    optional = ("AIRFLOW_BIND", "LAYOUT", "CONTENT_PRODUCER", *shown, *sizes, "PE_BASE_URL", "PE_MODEL", "PE_API_KEY")
    names = [name for name in env_lines(example) if name not in optional]
    addresses = {"FIRST_HOST": "10.0.0.1", "WORKER_BIND": "10.0.0.2", "WORKER_HOSTNAME": "node-2"}
    folders = {name: f"/example/{name}" for name in names if name.endswith("_DIR")}
    return {name: f"example-{name.lower()}" for name in names} | {
        name: value for name, value in (addresses | folders).items() if name in names
    }


def variables(text: str) -> dict[str, str | None]:
    """Every variable that the file asks for, with what follows `:-` where it has a default."""
    found = [match for match in _VARIABLE.finditer(text) if match["name"]]
    return {match["name"]: match["rest"] if match["kind"] == "-" else None for match in found}


def fill_in(text: str, environment: Mapping[str, str]) -> str:
    """`${NAME}`, `${NAME:-default}` and `${NAME:?message}` replaced, `$$` made `$`; KeyError with the message."""

    def value(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "$"
        if found := environment.get(match["name"]):
            return found
        if match["kind"] == "-":
            return str(match["rest"])
        raise KeyError(match["rest"] or f"{match['name']} is not set")

    return _VARIABLE.sub(value, text)


def load_compose(environment: Mapping[str, str], file: Path = COMPOSE) -> dict[str, Any]:
    """A compose file as compose would run it under `environment`."""
    document: dict[str, Any] = yaml.safe_load(fill_in(file.read_text(), environment))
    return document


def service_environment(service: Mapping[str, Any]) -> dict[str, str]:
    """What a service's processes find in their environment."""
    own = {name: "" if value is None else str(value) for name, value in service.get("environment", {}).items()}
    return (env_lines(REPOSITORY / service["env_file"]) if "env_file" in service else {}) | own
