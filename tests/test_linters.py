"""One set of linters: `make lint`, CI and the hooks before a commit run the same commands."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
HOOKS = [
    hook
    for repository in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in repository["hooks"]
]


def _parts_of_lint() -> list[str]:
    rule = re.search(r"^lint:(.*)$", MAKEFILE, re.MULTILINE)
    assert rule is not None
    return rule[1].split()


def test_hooks_before_a_commit_are_the_parts_of_make_lint() -> None:
    assert [hook["entry"] for hook in HOOKS] == [f"make {part}" for part in _parts_of_lint()]
    assert all(hook["language"] == "system" and not hook["pass_filenames"] for hook in HOOKS)


def test_make_lint_does_nothing_but_its_parts() -> None:
    assert re.search(r"^lint:.*\n\n", MAKEFILE, re.MULTILINE), "`make lint` has commands of its own, no hook runs them"
    assert all(re.search(rf"^{part}:.*\n\t", MAKEFILE, re.MULTILINE) for part in _parts_of_lint())


def test_ci_runs_make_lint() -> None:
    assert "make lint" in (ROOT / ".ci" / "run").read_text().splitlines()


@pytest.mark.parametrize(
    ("path", "hooks"),
    [
        ("magi2/batches/plan.py", {"lint-python", "lint-types"}),
        ("pyproject.toml", {"lint-python", "lint-types"}),
        ("operators/magi2_airflow/renders/static/batch.js", {"lint-web"}),
        ("magi2/report/page.css", {"lint-web"}),
        ("biome.json", {"lint-web"}),
        ("README.md", set()),
    ],
)
def test_a_changed_file_meets_its_linters_before_the_commit(path: str, hooks: set[str]) -> None:
    assert {hook["id"] for hook in HOOKS if re.search(hook["files"], path)} == hooks


def test_the_linter_of_javascript_and_css_is_pinned() -> None:
    wanted = json.loads((ROOT / "package.json").read_text())["devDependencies"]
    locked = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in wanted.values()), wanted
    assert {name: locked[f"node_modules/{name}"]["version"] for name in wanted} == wanted


def test_the_lock_names_no_registry_so_that_any_mirror_serves() -> None:
    locked = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    assert not [name for name, package in locked.items() if "resolved" in package]


@pytest.mark.slow
def test_without_node_make_says_in_one_line_what_to_install(tmp_path: Path) -> None:
    for name in ("Makefile", "package.json", "package-lock.json"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    make = shutil.which("make")
    assert make is not None
    ended = subprocess.run(
        [make, "--silent", "lint-web"],
        cwd=tmp_path,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode != 0
    assert ended.stderr.splitlines()[0] == "the linter of JavaScript and CSS needs Node.js: install nodejs and npm"
