"""Programs that pip does not bring: a test marked `programs(NAME, ...)` is skipped where one of them is missing.

What to install is said once, in a line at the end. With `--all-programs` a missing one fails the test instead.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from magi2.media.label import DEBIAN_FONT

PACKAGES = {
    "chromedriver": "chromium-driver",
    "chromium": "chromium",
    "docker-compose": "docker-compose",
    "exiftool": "libimage-exiftool-perl",
    "ffmpeg": "ffmpeg",
    str(DEBIAN_FONT): "fonts-noto-cjk",
    "make": "make",
    "openssl": "openssl",
    "redis-cli": "redis-tools",
    "redis-server": "redis-server",
    "wget": "wget",
}
"""The programs and files that tests ask for, and their Debian packages."""

MISSING = "not installed: "


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-programs", action="store_true", help="fail, not skip, where a program is missing")


def pytest_runtest_setup(item: pytest.Item) -> None:
    wanted = {name for mark in item.iter_markers("programs") for name in mark.args}
    packages = sorted({PACKAGES[name] for name in wanted if not (shutil.which(name) or Path(name).is_file())})
    if packages:
        give_up = pytest.fail if item.config.getoption("--all-programs") else pytest.skip
        give_up(MISSING + " ".join(packages))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = [report.longrepr[2] for report in terminalreporter.getreports("skipped")]
    lacking = [reason.partition(MISSING)[2].split() for reason in reasons if MISSING in reason]
    if lacking:
        packages = " ".join(sorted(set().union(*lacking)))
        line = f"{len(lacking)} tests were skipped; to run them: apt-get install {packages}"
        terminalreporter.line(line, yellow=True)
