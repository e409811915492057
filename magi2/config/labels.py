"""The labels that have a name, from `labels.yaml` of the installed configs."""

from __future__ import annotations

from functools import cache
from typing import Any

from magi2.config.installed import installed_folder
from magi2.config.strict import nearest
from magi2.errors import ConfigError
from magi2.inputs.text import load_yaml, quoted


def named_label(name: str) -> dict[str, Any]:
    """The label of this name, as a profile would write it out. Raises: ConfigError for a name that there is not."""
    known = _labels()
    if name not in known:
        raise ConfigError(f"delivery.label: unknown label {quoted(name)}", hint=nearest(name, known))
    return dict(known[name])


@cache
def _labels() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = load_yaml((installed_folder("configs") / "labels.yaml").read_text())
    return found
