"""Divides the limits on what is waited for by ten, in every process that has this folder on its PYTHONPATH."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

BY = 10
LIMITS = {
    "magi2.artifacts.s3": ("LONGEST_WAIT_S", "LONGEST_ANSWER_S", "_TIMEOUT", "_RETRIES"),
    "magi2.catalog.engine": (
        *("BUSY_TIMEOUT_S", "CONNECT_TIMEOUT_S", "STATEMENT_TIMEOUT_S", "LOCK_TIMEOUT_S"),
        *("POOL_TIMEOUT_S", "PATIENCE_S", "RETRY_S"),
    ),
    "magi2.jobs.recorder": ("SLOW_S",),
}


LEAST_S = 2
"""Less than that a busy machine takes for an answer of a server that is there, and libpq knows no less."""


def divided(limit: Any) -> Any:
    if isinstance(limit, int | float):
        return max(type(limit)(limit / BY), LEAST_S)
    if hasattr(limit, "backoff_factor"):
        return limit.new(backoff_factor=limit.backoff_factor / BY, retry_after_max=limit.retry_after_max / BY)
    return type(limit)(connect=LEAST_S, read=max(limit.read_timeout / BY, LEAST_S))


class Dividing(MetaPathFinder):
    """Finds the modules that have limits."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in LIMITS else None
        if spec is not None and spec.loader is not None:
            divide_after(spec.loader, LIMITS[name])
        return spec


def divide_after(loader: Loader, names: Sequence[str]) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        for name in names:
            setattr(module, name, divided(getattr(module, name)))

    loader.exec_module = exec_module  # type: ignore[method-assign]


sys.meta_path.insert(0, Dividing())
