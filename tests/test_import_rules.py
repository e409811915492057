"""Who may import whom, read from the sources without running them; `import_rules.table` has the rules."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.import_rules.reading import (
    AROUND,
    HEAVY,
    PRODUCT,
    ROOT,
    Import,
    below,
    imports,
    imports_of,
    loaded_with,
    sources,
)
from tests.import_rules.table import TABLE, Row, covers, goes_down, is_allowed, row_of


def of(*packages: str) -> list[Import]:
    """Imports made in `packages`."""
    return [found for found in imports() if below(found.importer, *packages)]


def listed(found: Iterable[Import]) -> list[str]:
    return [str(one) for one in found]


def modules_of(row: Row) -> list[str]:
    return [module for module in sources() if row_of(module) is row]


def test_every_module_is_in_a_row() -> None:
    strays = [module for module in sources() if row_of(module) is None]
    assert not strays, f"add to tests/import_rules/table.py: {strays}"


def test_every_name_in_the_table_is_that_of_a_module_and_stands_once() -> None:
    names = Counter(name for row in TABLE for name in row.names)
    assert not {name for name, count in names.items() if count > 1}
    assert not [name for name in names if not any(covers(name, module) for module in sources())]


def test_few_modules_of_the_library_lie_in_no_room() -> None:
    loose = sorted(path.stem for path in (ROOT / "magi2").glob("*.py") if path.stem != "__init__")
    assert len(loose) <= 5, f"at most five lie beside the folders, find the others one: {loose}"


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_modules_import_only_what_their_row_allows(row: Row) -> None:
    strays = [found for found in imports() if row_of(found.importer) is row and not is_allowed(*ends(found))]
    assert not strays, listed(strays)


def ends(found: Import) -> tuple[str, str]:
    return found.importer, found.module


def test_modules_import_only_from_rows_further_down() -> None:
    strays = [found for found in imports() if row_of(found.importer) and not goes_down(*ends(found))]
    assert not strays, listed(strays)


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_a_row_allows_nothing_that_it_does_not_need(row: Row) -> None:
    needed = [found.module for found in imports() if row_of(found.importer) is row]
    unused = [name for name in row.may_import if not any(covers(name, module) for module in needed)]
    assert not unused, f"take out of the row: {unused}"
    assert not row.heavy or any(HEAVY & loaded_with(module).keys() for module in modules_of(row)), "not heavy"


@pytest.mark.parametrize("row", [row for row in TABLE if not row.heavy], ids=str)
def test_a_row_that_is_not_heavy_loads_no_heavy_library(row: Row) -> None:
    for module in modules_of(row):
        reached = loaded_with(module)
        strays = [str(reached[name]) for name in HEAVY & reached.keys()]
        assert not strays, f"{module} loads a heavy library: {strays}"


def test_modules_do_not_import_each_other_in_circles() -> None:
    circle = circle_in(imports())
    assert not circle, " -> ".join(circle)


def circle_in(found: Iterable[Import]) -> list[str]:
    """Modules that import each other in a circle by any import, on load or not; empty when there is none."""
    graph: dict[str, set[str]] = {}
    for one in found:
        if one.module in sources() and one.module != one.importer:
            graph.setdefault(one.importer, set()).add(one.module)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])[::-1]
    return []


NEVER = {
    "the library never imports its surface": ("magi2", "airflow magi2_airflow dags"),
    "the product never imports what surrounds it": ("magi2 magi2_airflow dags", "tools demo_world benchmarks tests"),
    "what surrounds the product never imports its tests": ("tools demo_world benchmarks", "tests"),
    "only tools and tests use the world of the demo": ("benchmarks", "demo_world"),
    "files of DAGs name operators alone": ("dags", "magi2"),
    "stages are imported from above": (
        "magi2.models magi2.sampling magi2.media magi2.prompts magi2.artifacts magi2.kernels magi2.config",
        "magi2.stages magi2.runtime",
    ),
    "the operators are installed under a name of the project's own": (
        "magi2 magi2_airflow dags tools demo_world benchmarks",
        "operators",
    ),
    "commands are imported by commands": ("magi2 magi2_airflow dags", "magi2.cli"),
    "models and kernels know no stores": ("magi2.models magi2.kernels magi2.sampling", "magi2.artifacts minio"),
    "models and kernels are torch alone": ("magi2.models magi2.kernels magi2.sampling", "pydantic numpy einops yaml"),
}
"""Rules that no row may loosen: who never imports what."""


@pytest.mark.parametrize(("importers", "forbidden"), NEVER.values(), ids=NEVER)
def test_some_imports_are_never_allowed(importers: str, forbidden: str) -> None:
    strays = never(of(*importers.split()), forbidden)
    assert not strays, listed(strays)


def never(found: Iterable[Import], forbidden: str) -> list[Import]:
    """The imports of what is forbidden, but for those that it makes itself."""
    names = forbidden.split()
    return [one for one in found if below(one.module, *names) and not below(one.importer, *names)]


def test_only_the_catalog_speaks_to_the_database() -> None:
    strays = never(
        [found for found in of(*PRODUCT) if not below(found.importer, "magi2.catalog")], "sqlalchemy alembic psycopg2"
    )
    assert not strays, listed(strays)


READS_ENVIRONMENT = {
    "magi2.config.settings": "the one place for settings",
    "magi2.platform": "cuBLAS takes its workspace from there and nowhere else",
    "magi2.runtime.ranks": "tells each rank there its number and where to meet",
    "magi2.runtime.worker": "learns the rank's number there",
    "magi2.runtime.meeting": "learns there how many ranks there are",
    "magi2.runtime.launcher": "hands the environment on to its children",
}


def test_only_listed_modules_touch_the_environment() -> None:
    readers = {name for name, tree in sources().items() if below(name, "magi2") and _touches_environment(tree)}
    assert readers <= READS_ENVIRONMENT.keys(), readers - READS_ENVIRONMENT.keys()


def _touches_environment(tree: ast.Module) -> bool:
    names = {"environ", "environb", "getenv", "putenv"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value) == "os":
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "os" and names & {alias.name for alias in node.names}:
            return True
    return False


DISTRIBUTIONS = {
    "PIL": "pillow",
    "c2pa": "c2pa-python",
    "yaml": "pyyaml",
    "ffmpeg": "ffmpeg-python",
    "prometheus_client": "prometheus-client",
    "imageio_ffmpeg": "imageio-ffmpeg",
    "json_repair": "json-repair",
    "airflow": "apache-airflow",
    "urllib3": "minio",  # its transport, and the type of its pool
    "httpx": "openai",  # likewise
    "psycopg2": "psycopg2-binary",
}


def test_every_imported_package_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [requirement for extra in project["optional-dependencies"].values() for requirement in extra]
    declared = {
        requirement.partition(";")[0].split(">")[0].split("=")[0].split("[")[0].strip().lower()
        for requirement in [*project["dependencies"], *extras]
    }
    tops = {found.top for found in imports()} - {*PRODUCT, *AROUND}
    undeclared = {top for top in tops if DISTRIBUTIONS.get(top, top).lower() not in declared}
    assert not undeclared, undeclared


def test_nothing_prints() -> None:
    calls = [
        f"{name}:{node.lineno}"
        for name, tree in sources().items()
        if below(name, *PRODUCT)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not calls, calls


MADE_UP = """
import torch
from magi2.batches import plan
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import triton
def later():
    import magi2.stages.base
"""


def test_the_reader_tells_imports_on_load_from_later_ones() -> None:
    found = {one.module: one.at_load for one in imports_of("magi2.artifacts.made_up", ast.parse(MADE_UP))}
    assert found == {
        "torch": True,
        "magi2.batches.plan": True,
        "typing": True,
        "triton": False,
        "magi2.stages.base": False,
    }
    assert "torch" in loaded_with("magi2.stages.base") and "airflow" in loaded_with("magi2_airflow.base")


@pytest.mark.parametrize(
    ("importer", "module"),
    [
        ("magi2.artifacts.made_up", "magi2.batches.plan"),
        ("magi2.models.preview.made_up", "transformers"),
        ("magi2.batches.batch_file", "airflow.sdk"),
        ("magi2.batches.plan", "tools.demo"),
        ("magi2_airflow.base", "demo_world.judge"),
        ("magi2.stages.base", "tests.import_rules.table"),
        ("benchmarks.preview", "demo_world.scenes"),
        ("magi2.made_up", "magi2.errors"),
    ],
)
def test_the_rules_would_notice_a_forbidden_import(importer: str, module: str) -> None:
    assert not is_allowed(importer, module)


def test_the_rules_would_notice_an_import_that_goes_up() -> None:
    assert not goes_down("magi2.recipes.book", "magi2.stages.base")
    assert not goes_down("magi2.catalog.made_up", "magi2.cli.main")
    assert goes_down("magi2.stages.base", "magi2.recipes.book") and goes_down("magi2.stages.base", "torch")


def test_the_rules_would_notice_a_module_without_a_row() -> None:
    assert row_of("magi2.made_up") is None and row_of("made_up") is None
    assert row_of("magi2.catalog.made_up") is row_of("magi2.catalog")
    assert row_of("magi2.recipes.book") is not row_of("magi2.stages.base")


@pytest.mark.parametrize("hidden", ["if TYPE_CHECKING:\n    import {}", "def later():\n    import {}", "import {}"])
def test_the_rules_would_notice_a_circle(hidden: str) -> None:
    down = imports_of("magi2.catalog.control", ast.parse("import magi2.catalog.cost"))
    up = imports_of("magi2.catalog.cost", ast.parse(hidden.format("magi2.catalog.control")))
    assert set(circle_in([*down, *up])) == {"magi2.catalog.cost", "magi2.catalog.control"}


def test_the_rules_would_notice_what_is_never_allowed() -> None:
    found = [Import("magi2.batches.plan", "tools.demo", False, 1), Import("tools.demo", "tools.demo_clips", True, 1)]
    assert never(found, "tools demo_world") == found[:1]
