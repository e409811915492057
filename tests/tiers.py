"""The tiers of the tests: what is fast comes first.

A test's tier follows from its markers, and those of most tests from their folder or their fixtures. A test with no
marker of another tier gets `fast`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TIERS = {
    "fast": (),
    "slow": ("slow", "ranks", "processes", "demo_world", "gpu", "faults"),
    "airflow": ("airflow",),
    "servers": ("servers", "browser", "deployment"),
}
"""Tiers in the order in which they run, and what marks their tests; the last that fits counts.

The files of `airflow` take minutes each, those of `servers` fill the other worker until all are done.
"""

OF_FOLDERS = {
    "airflow": (pytest.mark.airflow,),
    "browser": (pytest.mark.browser, pytest.mark.programs("chromium", "chromedriver")),
    **dict.fromkeys(("dags", "demo_world", "meaning", "media", "operators", "renders", "stages"), (pytest.mark.slow,)),
}
OF_FIXTURES = {
    "chat_server": pytest.mark.slow,  # the SDK of its client asks programs which system this is
    "machine": pytest.mark.processes,
    "s3_server": pytest.mark.servers,
}


def mark(item: pytest.Item) -> None:
    """Add the markers of the test's folder and fixtures."""
    for marker in OF_FOLDERS.get(item.path.parent.name, ()):
        item.add_marker(marker)
    for fixture in OF_FIXTURES.keys() & getattr(item, "fixturenames", ()):
        item.add_marker(OF_FIXTURES[fixture])


def tier_of(item: pytest.Item) -> str:
    """The tier of a marked test."""
    marked = {marker.name for marker in item.iter_markers()}
    return [tier for tier, markers in TIERS.items() if tier == "fast" or marked.intersection(markers)][-1]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Folders without fast tests are not even read for these: what they import takes longer than some tests."""
    return True if config.option.markexpr == "fast" and collection_path.name in OF_FOLDERS else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests and sort them by tier, before some are chosen by marker."""
    order = list(TIERS)
    for item in items:
        mark(item)
    items.sort(key=lambda item: order.index(tier_of(item)))
    for item in items:
        if tier_of(item) == "fast":
            item.add_marker(pytest.mark.fast)
