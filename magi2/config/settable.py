"""The mark of what a row of a batch may set: never paths, code, endpoints, weights, or what shapes the processes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowSettable:
    """In the annotation of a profile's key. Of a section it marks `only` these keys of it, by default all."""

    only: tuple[str, ...] = ()


ROW = RowSettable()
