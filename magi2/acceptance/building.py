"""Building the model of a step, and what is told of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import TypeVar

from magi2.acceptance.measure import settle
from magi2.acceptance.plan import Figure
from magi2.acceptance.site import Site

M = TypeVar("M")


def built(site: Site, layers: int, whole: int, build: Callable[[], tuple[M, str]]) -> Generator[Figure, None, M]:
    """The model that `build` gives with where its weights come from; tells `layers` of `whole` before, and the time."""
    yield Figure("layers", layers)
    yield Figure("layers of the model", whole)
    started = time.monotonic()
    model, source = build()
    settle(site.device)
    yield Figure("weights", source)
    yield Figure("load", round(time.monotonic() - started, 2), "s")
    return model
