"""Under which names the project is installed, and what is installed: from a checkout, as a wheel and in the image."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from dataclasses import fields
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from mypy.build import default_data_dir
from mypy.fscache import FileSystemCache
from mypy.main import process_options
from mypy.modulefinder import FindModuleCache, compute_search_paths

from magi2.config.settings import Settings
from magi2_airflow.configuration import export_section
from magi2_airflow.provider_info import get_provider_info

ROOT = Path(__file__).parents[1]
FOLDERS = {"magi2": "magi2", "magi2_airflow": "operators/magi2_airflow"}
"""Where each installed package lies in the checkout."""

FIND = """
import importlib.util, sys
for spec in map(importlib.util.find_spec, sys.argv[1:]):
    print(spec and spec.origin)
"""
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, f'build_{sys.argv[1]}')(sys.argv[2])"
OF_THE_IMAGE = ("airflow.env", "create_catalog.sh", "environment.py", "hashes.txt", "init.py")
IN_THE_IMAGE = {f"configs/deploy/{name}" for name in OF_THE_IMAGE}
SHIPPED = """
import json, magi2, sys
from magi2.cli import airflow, main
from magi2.config.load import profile_names
from magi2.config.settings import Settings
from magi2_airflow.form import PROFILES
import contextlib, io
def said(command):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        command()
    return out.getvalue().strip()
print(json.dumps({
    "package": magi2.__file__, "profiles": profile_names(Settings().configs), "form": PROFILES,
    "dags": said(airflow.dags_folder_command), "pools": said(airflow.pools_command),
}))
"""
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
    for name in ("magi2", "operators", "configs", "dags"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
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


@pytest.fixture(scope="module")
def installed(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of a wheel that was made of a source archive."""
    folder = tmp_path_factory.mktemp("archive")
    run(BUILD, "sdist", str(folder), folder=checkout)
    (archive,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(archive, folder, filter="data")
    return unpacked("wheel", folder / archive.name.removesuffix(".tar.gz"), folder)


def files_of(folder: Path) -> set[str]:
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in found}


@pytest.mark.slow
def test_a_wheel_has_every_file_of_both_packages_and_no_other(installed: Path, tmp_path: Path) -> None:
    assert {path.name for path in installed.iterdir()} - FOLDERS.keys() == {
        path.name for path in installed.glob("*.dist-info")
    }
    shipped = files_of(installed / "magi2" / "shipped")
    for package, folder in FOLDERS.items():
        found = {name for name in files_of(installed / package) if not name.startswith("shipped/")}
        assert found == files_of(ROOT / folder)
    beside = {f"{place}/{name}" for place in ("configs", "dags") for name in files_of(ROOT / place)}
    assert shipped == beside - IN_THE_IMAGE and beside > IN_THE_IMAGE
    loaded = json.loads(run(LOAD, str(installed), folder=tmp_path, PYTHONPATH=str(installed)))
    assert {value.partition(":")[0] for value in loaded} == {
        "magi2.cli.main",
        "magi2_airflow.provider_info",
        "magi2_airflow.plugin",
    }
    assert all(Path(place).is_relative_to(installed) for place in loaded.values()), loaded


@pytest.mark.slow
def test_a_wheel_has_profiles_and_dags_where_there_is_no_checkout(installed: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    said = json.loads(run(SHIPPED, folder=empty, PYTHONPATH=str(installed)))
    assert {"1080p", "demo", "tiny"} <= set(said["profiles"]) == set(said["form"])
    folders = [Path(said[name]) for name in ("package", "dags", "pools")]
    assert all(folder.is_relative_to(installed) for folder in folders), said
    assert files_of(folders[1]) == files_of(ROOT / "dags")
    assert json.loads(folders[2].read_text()).keys() == {"magi2_cpu", "magi2_gpu1", "magi2_gpu8"}


@pytest.mark.slow
def test_what_airflow_lists_of_the_provider_is_complete(installed: Path) -> None:
    (info,) = installed.glob("*.dist-info")
    metadata = importlib.metadata.Distribution.at(info).metadata
    urls = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL"))
    assert urls["Documentation"].startswith("https://")  # Airflow reads it there
    assert "Framework :: Apache Airflow :: Provider" in metadata.get_all("Classifier")
    schema = files("airflow") / "provider_info.schema.json"
    said = get_provider_info()
    jsonschema.validate(said, json.loads(schema.read_text()))
    settings = {field.name for field in fields(Settings)}
    assert said["config"]["magi2"]["options"].keys() <= settings


def test_the_section_of_airflows_configuration_sets_what_the_environment_leaves_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MAGI2_STORE", "of the environment")
    monkeypatch.delenv("MAGI2_INBOX", raising=False)
    export_section({"store": "of the section", "inbox": "/inbox"}.get)
    assert (os.environ["MAGI2_STORE"], os.environ["MAGI2_INBOX"]) == ("of the environment", "/inbox")
    monkeypatch.delenv("MAGI2_INBOX")


@pytest.mark.deployment
def test_a_wheel_installed_anywhere_renders_and_is_airflows_provider(checkout: Path, tmp_path: Path) -> None:
    """A fresh environment that shares the installed dependencies, in an empty folder."""
    packed, fresh, empty = tmp_path / "packed", tmp_path / "fresh", tmp_path / "empty"
    packed.mkdir()
    empty.mkdir()
    run(BUILD, "wheel", str(packed), folder=checkout)
    subprocess.run([sys.executable, "-m", "venv", str(fresh)], check=True, timeout=300)
    (site,) = fresh.glob("lib/python*/site-packages")
    (site / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [
        fresh / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        *packed.glob("*.whl"),
    ]
    subprocess.run(pip, check=True, timeout=300)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAGI2_", "AIRFLOW_"))}
    environment |= {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__MAGI2__INBOX": "/srv/inbox",
        "MAGI2_CKPT_ROOT": str(ROOT / "examples" / "demo_checkpoint"),
        "MAGI2_STORE": str(tmp_path / "store"),
    }

    def said(*command: object) -> str:
        program = [fresh / "bin" / "python", "-m", *map(str, command)]
        return subprocess.check_output(program, cwd=empty, env=environment, text=True, timeout=900)

    assert "1080p" in said("magi2.cli.main", "profile", "list")
    findings = json.loads(said("magi2.cli.main", "doctor", "--profile", "demo", "--json"))
    assert findings["healthy"], findings
    row = json.loads((ROOT / "examples" / "shapes.jsonl").read_text().splitlines()[0])
    arguments = ("--prompt", row["prompt"], "--seed", row.get("seed", 1), "--profile", "demo", "--out", empty, "--json")
    (clip,) = json.loads(said("magi2.cli.main", "render", *arguments))["clips"]
    assert clip["state"] == "done" and Path(clip["files"]["clip.mp4"]).is_file()
    assert "magi2" in said("airflow", "providers", "list")
    assert said("airflow", "config", "get-value", "magi2", "inbox").strip() == "/srv/inbox"
    code = "from airflow.sdk.plugins_manager import integrate_macros_plugins as load; load()"
    code += "; import os; print(os.environ['MAGI2_INBOX'])"
    loaded = subprocess.check_output([fresh / "bin" / "python", "-c", code], cwd=empty, env=environment, text=True)
    assert loaded.splitlines()[-1] == "/srv/inbox"  # what a task sees


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
