"""What tests cost: CPU seconds of this process and of those that it waited for. A busy machine changes them little.

A summary by folder and the dearest tests (`--cpu-durations=N`) come at the end, and the total is the last line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from pathlib import PurePosixPath
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import Any

import pytest


def cpu_seconds() -> float:
    """CPU seconds of this process so far, with those of every process that has ended below it."""
    return sum(usage.ru_utime + usage.ru_stime for usage in map(getrusage, (RUSAGE_SELF, RUSAGE_CHILDREN)))


def folder_of(nodeid: str) -> str:
    """The folder of `tests` with the test: `runtime`, or `.` for a file beside them."""
    parts = PurePosixPath(nodeid.partition("::")[0]).parts
    return parts[1] if len(parts) > 2 else "."


class CpuSeconds:
    """Notes what was spent until each report; with several workers they note, and the controller adds up."""

    def __init__(self, shown: int) -> None:
        self._shown = shown
        self._until = 0.0
        self._tests: Counter[str] = Counter()

    def pytest_collection_finish(self) -> None:
        self._until = cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = cpu_seconds()
        report.user_properties.append(("cpu_seconds", now - self._until))
        self._until = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        spent: Any = dict(report.user_properties)["cpu_seconds"]
        self._tests[report.nodeid] += spent

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        folders: Counter[str] = Counter()
        for nodeid, seconds in self._tests.items():
            folders[folder_of(nodeid)] += seconds
        terminalreporter.section("CPU seconds")
        for name, seconds in [*self._tests.most_common(self._shown), *folders.most_common()]:
            terminalreporter.line(f"{seconds:7.1f}  {name}")
        terminalreporter.line(f"CPU seconds: {cpu_seconds():.0f}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-durations", type=int, default=10, metavar="N", help="list the N tests that cost most")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CpuSeconds(config.getoption("--cpu-durations")))
