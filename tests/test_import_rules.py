"""Who may import whom, read from the sources without running them."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
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


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def sources() -> dict[str, ast.Module]:
    """Every module of the product by dotted name."""
    paths = [path for top in ("magi2", "operators", "dags") for path in sorted((ROOT / top).rglob("*.py"))]
    return {module_name(path): ast.parse(path.read_text(), str(path)) for path in paths}


@cache
def imports() -> tuple[Import, ...]:
    return tuple(found for name, tree in sources().items() for found in _imports(name, tree, at_load=True))


def _imports(importer: str, node: ast.AST, *, at_load: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(importer, alias.name, at_load, node.lineno) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0 and node.module, f"{importer}:{node.lineno}: relative import"
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            is_module = full in sources() or full in HEAVY
            yield Import(importer, full if is_module else node.module, at_load, node.lineno)
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        for child in node.body:
            yield from _imports(importer, child, at_load=False)
        for child in node.orelse:
            yield from _imports(importer, child, at_load=at_load)
    else:
        runs_later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from _imports(importer, child, at_load=at_load and not runs_later)


def below(module: str, *packages: str) -> bool:
    """Whether a module is one of `packages` or inside one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def of(*packages: str) -> list[Import]:
    """Imports of other than the standard library, made in `packages`."""
    return [
        found for found in imports() if below(found.importer, *packages) and found.top not in sys.stdlib_module_names
    ]


def listed(found: Iterator[Import] | list[Import]) -> list[str]:
    return [str(one) for one in found]


ALLOWED: dict[str, tuple[str, ...]] = {
    "magi2.errors": (),
    "magi2.types": (),
    "magi2.seeds": ("magi2.errors",),
    "magi2.platform": ("torch", "magi2.errors"),
    "magi2.kernels": ("torch", "triton"),
    "magi2.parallel": ("torch", "magi2.errors"),
    "magi2.models": ("torch", "safetensors", "magi2.errors", "magi2.kernels", "magi2.parallel"),
    "magi2.models.text_encoder": ("transformers", "tokenizers"),
    "magi2.sampling": ("torch", "magi2.errors", "magi2.seeds"),
    "magi2.prompts": ("PIL", "json_repair", "openai", "pydantic", "magi2.errors"),
    "magi2.media": ("PIL", "av", "ffmpeg", "imageio_ffmpeg", "numpy", "torch", "magi2.errors"),
    "magi2.artifacts": ("minio", "urllib3", "safetensors", "torch", "magi2.errors", "magi2"),
    "magi2.config": (
        *("pydantic", "yaml", "magi2.errors", "magi2.media.delivery", "magi2.sampling.guidance_config"),
        *(f"magi2.models.{name}.config" for name in ("preview", "refiner", "video_vae")),
    ),
    "magi2.checkpoints": ("torch", "safetensors", "magi2.artifacts", "magi2.config", "magi2.errors", "magi2.models"),
    "magi2.stages": (
        "torch",
        *(
            f"magi2.{name}"
            for name in ("artifacts", "checkpoints", "config", "errors", "platform", "torch_build", "types")
        ),
        *(f"magi2.{name}" for name in ("media", "models", "parallel", "prompts", "sampling")),
    ),
}
"""Package -> what it may import besides itself and the standard library. A package inside another may import more."""


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_its_layer_may(package: str) -> None:
    strays = [found for found in of(package) if not _is_allowed(found, package)]
    assert not strays, listed(strays)


def _is_allowed(found: Import, package: str) -> bool:
    if below(found.module, package) and package != "magi2":
        return True
    owners = [owner for owner in ALLOWED if below(found.importer, owner)]
    allowed = [entry for owner in owners for entry in ALLOWED[owner]]
    # "magi2" alone stands for its version; with anything below it the table would allow everything.
    exact = found.module == "magi2" and "magi2" in allowed
    return exact or below(found.module, *(entry for entry in allowed if entry != "magi2"), *owners)


def test_the_library_never_imports_its_surface() -> None:
    strays = [found for found in of("magi2") if found.top in ("airflow", "operators", "dags")]
    assert not strays, listed(strays)


def test_only_the_catalog_speaks_to_the_database() -> None:
    strays = [
        found
        for found in of("magi2", "operators", "dags")
        if found.top in ("sqlalchemy", "alembic") and not below(found.importer, "magi2.catalog")
    ]
    assert not strays, listed(strays)


def test_stages_and_commands_are_imported_from_above_only() -> None:
    lower = [f"magi2.{name}" for name in ("models", "sampling", "media", "prompts", "artifacts", "kernels", "config")]
    strays = [found for found in of(*lower) if below(found.module, "magi2.stages", "magi2.runtime")]
    strays += [
        found for found in of("magi2") if below(found.module, "magi2.cli") and not below(found.importer, "magi2.cli")
    ]
    assert not strays, listed(strays)


def test_artifacts_import_torch_only_where_tensors_are_read_or_written() -> None:
    strays = [found for found in of("magi2.artifacts") if found.at_load and found.top in HEAVY]
    assert not strays, listed(strays)


def test_model_and_kernel_files_need_no_pydantic_numpy_or_einops() -> None:
    strays = [
        found
        for found in of("magi2.models", "magi2.kernels", "magi2.sampling")
        if found.top in ("pydantic", "numpy", "einops", "yaml")
    ]
    assert not strays, listed(strays)


def loaded_with(module: str) -> dict[str, Import | None]:
    """Every module that importing `module` imports as well, and the import that first led there."""
    reached: dict[str, Import | None] = {}
    waiting: list[tuple[str, Import | None]] = [(module, None)]
    while waiting:
        name, because = waiting.pop()
        parents = [".".join(name.split(".")[:depth]) for depth in range(1, name.count(".") + 2)]
        for part in parents:
            if part in reached:
                continue
            reached[part] = because
            if part in sources():
                waiting += [(found.module, found) for found in _at_load(part)]
    return reached


@cache
def _at_load(importer: str) -> tuple[Import, ...]:
    return tuple(found for found in imports() if found.importer == importer and found.at_load)


SURFACE = sorted(name for name in sources() if below(name, "operators", "dags"))
TORCH_FREE = [
    *("magi2.types", "magi2.errors", "magi2.seeds", "magi2.batch", "magi2.plan", "magi2.config.load"),
    *("magi2.stages.recipes", "magi2.stages.books", "magi2.stages.captions", "magi2.artifacts", "magi2.catalog"),
    *("magi2.runtime.launcher", "magi2.runtime.exit_codes", "magi2.checkpoints.layout", "magi2.parallel.layout"),
    "magi2.cli.main",
    *SURFACE,
]


@pytest.mark.parametrize("module", TORCH_FREE)
def test_what_plans_and_schedules_loads_no_heavy_library(module: str) -> None:
    reached = loaded_with(module)
    strays = [str(reached[name]) for name in HEAVY & reached.keys()]
    assert not strays, strays


def test_modules_do_not_import_each_other_in_circles() -> None:
    graph = {
        name: {found.module for found in _at_load(name) if found.module in sources() and found.module != name}
        for name in sources()
    }
    TopologicalSorter(graph).prepare()


READS_ENVIRONMENT = {
    "magi2.config.settings": "the one place for settings",
    "magi2.platform": "cuBLAS takes its workspace from there and nowhere else",
    "magi2.runtime.worker": "torchrun tells a rank its number there",
    "magi2.runtime.meeting": "torchrun tells a rank there how many there are",
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
    "yaml": "pyyaml",
    "ffmpeg": "ffmpeg-python",
    "prometheus_client": "prometheus-client",
    "imageio_ffmpeg": "imageio-ffmpeg",
    "json_repair": "json-repair",
    "airflow": "apache-airflow",
    "urllib3": "minio",  # its transport, and the type of its pool
    "httpx": "openai",  # likewise
}


def test_every_imported_package_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [requirement for extra in project["optional-dependencies"].values() for requirement in extra]
    declared = {
        requirement.partition(";")[0].split(">")[0].split("=")[0].split("[")[0].strip().lower()
        for requirement in [*project["dependencies"], *extras]
    }
    own = {"magi2", "operators", "dags"}
    tops = {found.top for found in of(*own)} - own
    undeclared = {top for top in tops if DISTRIBUTIONS.get(top, top).lower() not in declared}
    assert not undeclared, undeclared


def test_nothing_prints() -> None:
    calls = [
        f"{name}:{node.lineno}"
        for name, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not calls, calls


def test_the_rules_would_notice() -> None:
    tree = ast.parse(
        "import torch\nfrom magi2 import plan\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import triton\ndef later():\n    import magi2.stages.base\n"
    )
    found = {one.module: one.at_load for one in _imports("magi2.artifacts.made_up", tree, at_load=True)}
    assert found == {"torch": True, "magi2.plan": True, "typing": True, "triton": False, "magi2.stages.base": False}
    assert not _is_allowed(Import("magi2.artifacts.made_up", "magi2.plan", True, 2), "magi2.artifacts")
    assert not _is_allowed(Import("magi2.models.preview.made_up", "transformers", True, 1), "magi2.models")
    assert "torch" in loaded_with("magi2.stages.base") and "airflow" in loaded_with("operators.base")
