"""How tests are shared among workers: neighbours of one file stay together, and so do those of a site.

Each such unit goes to the next worker that is free, in the order in which the tests were collected. The groups of xdist
need the ids of tests to change, which pytest 9.2 ignores without a word: each worker then makes every fixture itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

SITES = ("airflow", "browser", "catalog", "contract", "stages")
"""Folders whose files share an expensive fixture; elsewhere each file has its own."""


def place_of(nodeid: str) -> str:
    """The file of a test, or the folder when that is a site."""
    file = PurePosixPath(nodeid.partition("::")[0])
    return str(file.parent if file.parent.name in SITES else file)


def units_of(nodeids: Sequence[str]) -> dict[str, str]:
    """Test to unit: a place and how many units come before, since a place has tests in several tiers."""
    neighbours = enumerate(groupby(nodeids, place_of))
    return {nodeid: f"{number}-{place}" for number, (place, tests) in neighbours for nodeid in tests}


class Neighbours(LoadScopeScheduling):  # type: ignore[misc]  # which has no types
    """Hands out unit by unit."""

    def schedule(self) -> None:
        self._units = units_of(next(iter(self.registered_collections.values())))
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return self._units[nodeid]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Neighbours:
    return Neighbours(config, log)  # without a log of its own it would write one to the terminal
