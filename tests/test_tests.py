"""How tests reach their helpers: by full name, in packages, never through another test."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("tests", "tools", "benchmarks", "demo_world")
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
FOLDERS = {path.parent for path in FILES if path.name == "conftest.py" or path.name.startswith("test_")}
BARE = {path.stem for path in FILES if path.is_relative_to(ROOT / "tests") or path.parent.name in PACKAGES} - {"tests"}


def offences(source: str) -> list[str]:
    """What ties a file to the place from which tests are imported, with lines."""
    return [f"{offence} in line {node.lineno}" for node in ast.walk(ast.parse(source)) for offence in _of_node(node)]


def _of_node(node: ast.AST) -> Iterator[str]:
    for module in _modules(node):
        top, last = module.partition(".")[0], module.rpartition(".")[2]
        if last.startswith("test_") or last == "conftest":
            yield f"imports from the test {module}"
        elif top in BARE or not top:
            yield f"imports {module}, which has a longer name"
    if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.path":
        yield "uses sys.path"


def _modules(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        name = "." * node.level + (node.module or "")
        yield name
        if name.startswith(PACKAGES) or node.level:
            yield from (f"{name}.{alias.name}" for alias in node.names)


def test_helpers_are_imported_by_their_full_names() -> None:
    found = {str(path.relative_to(ROOT)): offences(path.read_text()) for path in FILES}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


def test_folders_of_tests_are_packages() -> None:
    """Else pytest puts the folder on the path, and its helpers have two names."""
    assert [folder for folder in FOLDERS if not (folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize(
    "source",
    [
        "from test_batch import rows",
        "from tests.test_batch import rows",
        "from tests import test_batch",
        "import tests.test_batch",
        "from conftest import GOLDEN",
        "from tests.conftest import GOLDEN",
        "from .test_batch import rows",
        "from . import render_helpers",
        "import render_helpers",
        "from render_helpers import save",
        "def late():\n    from local_airflow import LocalAirflow",
        "import sys\nsys.path.insert(0, 'tools')",
    ],
)
def test_other_ways_are_found(source: str) -> None:
    assert offences(source)
    assert not offences(
        "import sys\nfrom tests.render_helpers import save\nfrom tools.local_airflow import LocalAirflow"
    )
