"""Every import of the repository's code, read from the sources without running them."""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("magi2", "magi2_airflow", "dags")
AROUND = ("tools", "demo_world", "benchmarks")
FOLDERS = {"magi2_airflow": ROOT / "operators"}
"""Where a package lies, if not in the root."""
HEAVY = {"torch", "triton", "transformers", "tokenizers", "safetensors.torch", "numpy"}


@dataclass(frozen=True)
class Import:
    """One import of `module` in a file; `at_load` when it runs as soon as the file is imported."""

    importer: str
    module: str
    at_load: bool
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.module}"

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


def below(module: str, *packages: str) -> bool:
    """Whether a module is one of `packages` or inside one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


@cache
def sources() -> dict[str, ast.Module]:
    """Every module of the product and of what surrounds it, by dotted name."""
    gc.disable()  # millions of nodes that all stay: looking through them for garbage again and again takes 3 s of 4
    try:
        return {
            _module_name(path, folder): ast.parse(path.read_text(), str(path))
            for top in (*PRODUCT, *AROUND)
            for folder in [FOLDERS.get(top, ROOT)]
            for path in sorted((folder / top).rglob("*.py"))
        }
    finally:
        gc.enable()


def _module_name(path: Path, folder: Path) -> str:
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports() -> tuple[Import, ...]:
    """Every import of other than the standard library: on load, inside functions and for type checkers alone."""
    return tuple(
        found
        for name, tree in sources().items()
        for found in imports_of(name, tree)
        if found.top not in sys.stdlib_module_names
    )


def imports_of(importer: str, node: ast.AST, *, at_load: bool = True) -> Iterator[Import]:
    """The imports in one tree, a name imported from a package being that of a module where there is one."""
    if isinstance(node, ast.Import):
        yield from (Import(importer, alias.name, at_load, node.lineno) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0 and node.module, f"{importer}:{node.lineno}: relative import"
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            is_module = full in sources() or full in HEAVY
            yield Import(importer, full if is_module else node.module, at_load, node.lineno)
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        branches = [(node.body, False), (node.orelse, at_load)]
        for children, loads in branches:
            for statement in children:
                yield from imports_of(importer, statement, at_load=loads)
    else:
        runs_later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from imports_of(importer, child, at_load=at_load and not runs_later)


def loaded_with(module: str) -> dict[str, Import | None]:
    """Every module that importing `module` imports as well, and the import that first led there."""
    reached: dict[str, Import | None] = {}
    waiting: list[tuple[str, Import | None]] = [(module, None)]
    while waiting:
        name, because = waiting.pop()
        parents = [".".join(name.split(".")[:depth]) for depth in range(1, name.count(".") + 2)]
        for part in parents:
            if part not in reached:
                reached[part] = because
                waiting += [(found.module, found) for found in _at_load().get(part, ())]
    return reached


@cache
def _at_load() -> dict[str, list[Import]]:
    by_importer: dict[str, list[Import]] = {}
    for found in imports():
        if found.at_load:
            by_importer.setdefault(found.importer, []).append(found)
    return by_importer
