"""The README's section *By hand*, typed line by line by somebody who has just cloned the repository.

The demo's profile takes few steps: all of them are taken under `make test-demo-world`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from demo_world.judge import judge_clip
from demo_world.reading import read_caption
from magi2.cli.main import main
from magi2.config.settings import Settings

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^## By hand\n+```\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXEMPT = "published weights"
"""How the comment of a line begins that nobody can run without them."""
STEPS = 6


def lines() -> list[str]:
    """The commands that need nothing but the repository, in order."""
    found = BLOCK.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert found is not None
    parts = [line.partition(" #") for line in found[1].splitlines()]
    return [command.strip() for command, _, comment in parts if not comment.strip().startswith(EXEMPT)]


def quicker(folder: Path) -> Path:
    """The configs, with few steps in the profile `demo`."""
    shutil.copytree(Settings().configs, folder)
    demo = folder / "profiles" / "demo.yaml"
    profile = yaml.safe_load(demo.read_text())
    profile["preview"]["steps"] = STEPS
    demo.write_text(yaml.safe_dump(profile))
    return folder


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], tuple[int, str]]:
    """Exit code and output of a line in a fresh folder of a user who has nothing yet."""
    for name in os.environ:
        if name.startswith(("MAGI2_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone" / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path / "clone")
    monkeypatch.setenv("PWD", str(tmp_path / "clone"))
    monkeypatch.setenv("MAGI2_CONFIGS", str(quicker(tmp_path / "configs")))

    def run(line: str) -> tuple[int, str]:
        words = shlex.split(os.path.expandvars(line))
        if words[0] == "export":
            monkeypatch.setenv(*words[1].split("=", 1))
            return 0, ""
        monkeypatch.setattr("sys.argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    return run


def test_every_line_works_in_order_and_the_clip_is_what_its_prompt_says(
    shell: Callable[[str], tuple[int, str]], tmp_path: Path
) -> None:
    told = {line: shell(line) for line in lines()}
    assert {line: said for line, said in told.items() if said[0]} == {}
    assert len(told) >= 10, "the section is not read any more"
    assert "0 problems" in told["magi2 verify"][1]
    assert re.search(r"prompt +done +1/1", told["magi2 status"][1])
    (clip,) = (tmp_path / "clone" / "clips").glob("*.mp4")
    (prompt,) = {shlex.split(line)[3] for line in told if " --prompt " in line}
    verdict = judge_clip(clip, read_caption(prompt))
    assert verdict.wrong == (), verdict.as_json()
