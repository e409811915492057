"""Under which names the project is installed, and what is installed: from a checkout, as a wheel and in the image."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from mypy.build import default_data_dir
from mypy.fscache import FileSystemCache
from mypy.main import process_options
from mypy.modulefinder import FindModuleCache, compute_search_paths

ROOT = Path(__file__).parents[1]
FOLDERS = {"magi2": "magi2", "magi2_airflow": "operators/magi2_airflow"}
"""Where each installed package lies in the checkout."""

FIND = """
import importlib.util, sys
for spec in map(importlib.util.find_spec, sys.argv[1:]):
    print(spec and spec.origin)
"""
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, f'build_{sys.argv[1]}')(sys.argv[2])"
LOAD = """
import importlib.metadata, json, pathlib, sys
(info,) = pathlib.Path(sys.argv[1]).glob("*.dist-info")
points = importlib.metadata.Distribution.at(info).entry_points
print(json.dumps({point.value: sys.modules[point.load().__module__].__file__ for point in points}))
"""


def run(code: str, *arguments: str, folder: Path, options: tuple[str, ...] = (), **variables: str) -> str:
    """What a Python in `folder` prints, to whom nobody says where the project lies."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    command = [sys.executable, *options, "-c", code, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def places(root: Path) -> list[str]:
    return [str(root / folder / "__init__.py") for folder in FOLDERS.values()]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is packed, in which a build may leave its files."""
    copy = tmp_path_factory.mktemp("packaging") / "checkout"
    for name in ("magi2", "operators"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


def unpacked(kind: str, checkout: Path, target: Path) -> Path:
    """The folder of installed packages that a wheel of this kind makes."""
    packed, installed = target / "packed", target / "installed"
    packed.mkdir()
    run(BUILD, kind, str(packed), folder=checkout)
    (wheel,) = packed.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(installed)
    return installed


def files_of(folder: Path) -> set[str]:
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in found}


@pytest.mark.slow
def test_a_wheel_has_every_file_of_both_packages_and_no_other(checkout: Path, tmp_path: Path) -> None:
    installed = unpacked("wheel", checkout, tmp_path)
    assert {path.name for path in installed.iterdir()} - FOLDERS.keys() == {
        path.name for path in installed.glob("*.dist-info")
    }
    for package, folder in FOLDERS.items():
        assert files_of(installed / package) == files_of(ROOT / folder)
    loaded = json.loads(run(LOAD, str(installed), folder=tmp_path, PYTHONPATH=str(installed)))
    assert {value.partition(":")[0] for value in loaded} == {
        "magi2.cli.main",
        "magi2_airflow.provider_info",
        "magi2_airflow.plugin",
    }
    assert all(Path(place).is_relative_to(installed) for place in loaded.values()), loaded


@pytest.mark.slow
def test_an_editable_install_finds_both_packages_in_the_checkout(checkout: Path, tmp_path: Path) -> None:
    installed = unpacked("editable", checkout, tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    alone = f"import site; site.addsitedir({str(installed)!r}); {FIND}"
    assert run(alone, *FOLDERS, folder=empty, options=("-I", "-S")).splitlines() == places(checkout)


@pytest.mark.slow
def test_this_environment_has_the_project_installed_from_here(tmp_path: Path) -> None:
    found = run(FIND, *FOLDERS, folder=tmp_path).splitlines()
    assert found == places(ROOT), "the install is older than this checkout or of another one: make --always-make setup"


@pytest.mark.slow
@pytest.mark.programs("make")
@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_make_installs_again_after_what_says_how_has_changed(changed: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    stamp = tmp_path / ".venv" / ".installed"
    stamp.parent.mkdir()
    for number, path in enumerate((tmp_path / "pyproject.toml", tmp_path / "constraints.txt", stamp)):
        path.touch()
        os.utime(path, (number, number))
    would_do = ["make", "--dry-run", "setup"]
    assert "pip" not in subprocess.check_output(would_do, cwd=tmp_path, text=True)
    os.utime(tmp_path / changed, (9, 9))
    assert "pip install" in subprocess.check_output(would_do, cwd=tmp_path, text=True)


def test_mypy_knows_the_operators_by_their_installed_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    checked, options = process_options(["--config-file", "pyproject.toml"])
    names = {source.module for source in checked}
    assert "magi2_airflow.base" in names and not {name for name in names if name.split(".")[0] == "operators"}
    cache = FileSystemCache()
    paths = compute_search_paths([], options, default_data_dir())
    found = FindModuleCache(paths, cache, options).find_module("magi2_airflow.base")
    assert isinstance(found, str) and Path(found).samefile(ROOT / "operators" / "magi2_airflow" / "base.py")


def test_every_file_beside_the_code_is_package_data() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    for package, folder in FOLDERS.items():
        place = ROOT / folder
        shipped = {path for pattern in patterns[package] for path in place.glob(pattern)}
        beside = {path for path in place.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
        assert beside and beside - shipped == set()
