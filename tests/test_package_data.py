"""What the code reads beside itself goes into the wheel."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_file_beside_the_code_is_package_data() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    shipped = {path for package, globs in patterns.items() for glob in globs for path in (ROOT / package).glob(glob)}
    beside = {
        path
        for package in patterns
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert beside - shipped == set()
    assert ROOT / "magi2" / "report" / "page.css" in shipped
