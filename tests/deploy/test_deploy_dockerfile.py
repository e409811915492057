"""What the Dockerfile promises, read line by line, and the environment that it makes, made for real."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

from tests.deploy.deploy_compose import REPOSITORY

TEXT = (REPOSITORY / "Dockerfile").read_text()
BUILDER = REPOSITORY / "configs" / "deploy" / "environment.py"


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions in order, continued lines joined, comments left out."""
    lines = [line for line in TEXT.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines()
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in joined]


def values(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def test_only_known_instructions() -> None:
    known = {"ARG", "FROM", "USER", "ENTRYPOINT", "RUN", "COPY", "ENV", "WORKDIR", "CMD"}
    assert {name for name, _ in instructions()} <= known


def test_base_image_is_an_argument_with_a_pinned_default() -> None:
    assert instructions()[0][0] == "ARG" and values("FROM") == ["${BASE_IMAGE}"]
    assert re.fullmatch(r"BASE_IMAGE=\S+:[\w.-]+@sha256:[0-9a-f]{64}", values("ARG")[0])


def test_runs_as_an_ordinary_user() -> None:
    last = values("USER")[-1]
    assert last == "50000:0" and "useradd --uid 50000" in TEXT
    names = [name for name, _ in instructions()]
    assert "RUN" not in names[len(names) - names[::-1].index("USER") :]


def test_no_secret_can_enter_the_image() -> None:
    assert not [text for text in (*values("ARG"), *values("ENV")) if re.search(r"(?i)password|secret|token|_key", text)]
    ignored = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert {".env", ".env.*", ".git"} <= set(ignored)
    assert ".env" in (REPOSITORY / ".gitignore").read_text().splitlines()


def test_copied_files_exist() -> None:
    for text in values("COPY"):
        for source in text.split()[:-1]:
            assert (REPOSITORY / source).exists(), source


def test_the_checkout_is_installed_where_the_commands_run() -> None:
    """Its place decides: Airflow and workers import both packages by the names that the checkout gives them."""
    (place,) = [text.split()[-1] for text in values("COPY") if text.split()[0] == "."]
    install = next(text for text in values("RUN") if f"--editable {place}" in text)
    names = [(name, rest) for name, rest in instructions()]
    assert names.index(("RUN", install)) > names.index(("COPY", f". {place}"))
    target = re.search(r"--python (\S+)/bin/python ", install)
    assert target and f"PATH={target[1]}/bin:$PATH" in values("ENV")[0]
    ignored = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert not {"magi2", "operators", "dags", "configs", "pyproject.toml"} & {line.strip("/*") for line in ignored}


def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("deploy_environment", BUILDER)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PYPROJECT = """
[project]
dependencies = ["numpy>=2", "torch>=2.11", "typer"]
[project.optional-dependencies]
airflow = ["apache-airflow>=3.3,<3.4"]
c2pa = ["c2pa-python>=0.38"]
cuda = ["fa3-fwd>=0.0.3", "triton>=3.6"]
musa = ["torchada>=0.1.103", "triton>=3.6"]
"""
CONSTRAINTS = "# pins\nnumpy==2.4.6\ntorch==2.13.0\ntriton==3.7.1\ntorchada==0.1.103\ncelery==5.6.3\n"


@pytest.mark.parametrize(
    ("base", "asked", "held"),
    [
        ({}, ["numpy", "torch", "typer"], "torch==2.13.0"),
        ({"torch": "2.13.0+cu126", "triton": "3.7.1"}, ["numpy", "typer", "fa3-fwd"], "torch==2.13.0+cu126"),
        ({"torch": "2.13.0+cu126"}, ["numpy", "typer", "fa3-fwd", "triton"], "torch==2.13.0+cu126"),
        (
            {"torch": "2.11.0.post1+musa5.2.0", "torch-musa": "2.11.0.post1+musa5.2.0", "triton": "3.6.0"},
            ["numpy", "typer", "torchada"],
            "torch==2.11.0.post1+musa5.2.0",
        ),
    ],
    ids=["no torch", "cuda", "cuda without triton", "musa"],
)
def test_the_bases_torch_is_kept(base: dict[str, str], asked: list[str], held: str) -> None:
    module = builder()
    requirements, constraints = module.plan(PYPROJECT, CONSTRAINTS, base)
    names = [re.match(r"[\w.-]+", line)[0] for line in requirements]  # type: ignore[index]
    always = {"apache-airflow", "apache-airflow-providers-celery", "apache-airflow-providers-postgres", "c2pa-python"}
    assert [name for name in names if name not in always] == asked and always <= set(names)
    assert [line for line in constraints if line.startswith("torch==")] == [held]
    assert "celery==5.6.3" in constraints and "numpy==2.4.6" in constraints


def test_a_base_without_torch_gets_what_cuda_needs_when_asked() -> None:
    requirements, constraints = builder().plan(PYPROJECT, CONSTRAINTS, {}, "cuda")
    assert {"torch>=2.11", "fa3-fwd>=0.0.3", "triton>=3.6"} <= set(requirements)
    assert {"torch==2.13.0", "triton==3.7.1"} <= set(constraints)


HASHED = re.compile(
    r"^([\w.-]+)(?:\[[\w,-]+\])?==(\S+)(?: ; [^\\\n]+)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE
)


def hashed() -> dict[str, str]:
    """Versions by normal name of the packages that are installed by their hashes."""
    text = (REPOSITORY / "configs" / "deploy" / "hashes.txt").read_text()
    found = {builder().normal(name): version for name, version, _ in HASHED.findall(text)}
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", " "))]
    assert len(lines) == len(found), "a package without a hash"
    return found


def test_hashes_are_those_of_the_pinned_versions() -> None:
    normal = builder().normal
    pins = [line.split("==") for line in (REPOSITORY / "constraints.txt").read_text().splitlines() if "==" in line]
    pinned = {normal(name): version for name, version in pins}
    assert {name: version for name, version in hashed().items() if pinned.get(name, version) != version} == {}
    assert hashed().keys() - pinned.keys() == {"setuptools"}, "which builds the project"


def test_every_package_of_the_image_but_torchs_has_its_hash() -> None:
    """What the project and its extras for Airflow and signatures need in turn, as the packages installed here say."""
    module, needed = builder(), set()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras_of = project["optional-dependencies"]
    waiting = [Requirement(line) for line in [*project["dependencies"], *extras_of["airflow"], *extras_of["c2pa"]]]
    while waiting:
        requirement = waiting.pop()
        name, extras = module.normal(requirement.name), requirement.extras or {""}
        if (name, *sorted(extras)) in needed or module.FROM_THE_BASE.fullmatch(name):
            continue
        needed.add((name, *sorted(extras)))
        for line in metadata.requires(name) or ():
            found = Requirement(line)
            if found.marker is None or any(found.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(found)
    assert {name for name, *_ in needed} <= hashed().keys()
    assert not [name for name in hashed() if module.FROM_THE_BASE.fullmatch(name)]


@pytest.mark.parametrize("index", ["", "https://torch.example/cpu"])
def test_torch_comes_from_its_own_index_alone(index: str, tmp_path: Path) -> None:
    first, second = builder().commands(tmp_path, index, with_torch=True)
    assert {"--require-hashes", "--no-deps"} <= set(first) and not any("index" in word for word in first)
    assert not {"--require-hashes", "--extra-index-url"} & set(second)
    assert (second[second.index("--index-url") + 1] if "--index-url" in second else "") == index
    assert builder().commands(tmp_path, index, with_torch=False) == [first]


@pytest.mark.slow
def test_environment_sees_the_bases_packages_behind_its_own(tmp_path: Path) -> None:
    """The Python of this test stands for a base image whose Python is itself a virtual environment."""
    target = tmp_path / "venv"
    builder().make_environment(target)
    python = str(target / "bin" / "python")
    (own,) = target.glob("lib/python*/site-packages")
    (own / "jinja2").mkdir()
    (own / "jinja2" / "__init__.py").write_text("__version__ = 'own'\n")
    code = "import importlib.util as u, sys, jinja2; print(sys.prefix, u.find_spec('torch').origin, jinja2.__version__)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    here = importlib.util.find_spec("torch")
    assert here and done.stdout.split() == [str(target), here.origin, "own"]

    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    if importlib.util.find_spec("pip") is None:
        pytest.skip("no pip")
    constraint = tmp_path / "constraints.txt"
    constraint.write_text("".join(f"{name}=={version}\n" for name, version in builder().torch_packages().items()))
    dry = [*pip, "install", "--dry-run", "--no-index", "--constraint", str(constraint), "torch"]
    done = subprocess.run(dry, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "already satisfied: torch" in done.stdout, done.stderr


def test_old_python_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = builder()
    monkeypatch.setattr(module.sys, "version_info", (3, 10, 12, "final", 0))
    with pytest.raises(SystemExit, match=r"at least 3\.11 is needed; choose another BASE_IMAGE"):
        module.check_base()
