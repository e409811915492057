"""`--layout` on the command line: a group of ranks does what one process does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_said import Magi2
from tests.render_helpers import SMALL

PROMPT = ["--prompt", "a heron takes off", "--seed", 7, "--profile", "tiny-preview", "--json"]
SET = [argument for override in (*SMALL, "text.use_negative_prompt=false") for argument in ("--set", override)]


@pytest.fixture(autouse=True)
def own_corner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks, jobs and logs of the test's own, and no accelerator."""
    monkeypatch.setattr("magi2.runtime.launcher.run_folder", lambda folder: _made(tmp_path / "run"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def stage(magi2: Magi2, name: str, *arguments: object) -> dict[str, Any]:
    said = magi2("stage", name, *PROMPT, *SET, *arguments)
    assert said.code == 0, said.err
    (clip,) = json.loads(said.out)["clips"]
    return dict(clip)


@pytest.mark.ranks
def test_stage_on_two_ranks_makes_the_artifact_that_one_rank_then_finds(
    magi2: Magi2, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MAGI2_DEVICE", "cpu")
    for name in ("enhance", "encode"):
        assert stage(magi2, name)["state"] == "made"
    made = stage(magi2, "preview", "--layout", "sp2")
    assert made["state"] == "made"
    assert len(list((tmp_path / "run" / "logs").glob("*.preview.*.log"))) == 1
    for arguments in (("--layout", "sp2"), ()):
        again = stage(magi2, "preview", *arguments)
        assert (again["state"], again["key"]) == ("reused", made["key"])
    assert len(list((tmp_path / "run" / "logs").iterdir())) == 1
    (manifest,) = (tmp_path / "store" / "artifacts" / "preview").rglob("manifest.json")
    assert json.loads(manifest.read_text())["report"]["layout"] == "sp2.cfg1.ep2"
    left = {path.parent.name: path for path in (tmp_path / "store" / "documents").rglob("*.json")}
    assert set(left) == {"documents", "leases"}, "a batch of the command line was left"
    assert json.loads(left["leases"].read_text())["ended"]
