"""A whole acceptance on the CPU with the demonstration's weights, as on a node without a card."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from magi2.acceptance.plan import STEPS

pytestmark = pytest.mark.demo_world

DEMO = Path(__file__).parents[2] / "examples" / "demo_checkpoint"
NOT_HERE = {"airflow", "rehearse", "kernels", "collectives"}
"""Steps whose tool is absent: an Airflow, an accelerator, more ranks than one."""


def test_every_step_that_can_run_here_passes_and_the_report_says_what_a_clip_takes(tmp_path: Path) -> None:
    """Some 70 CPU-s."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAGI2_", "AIRFLOW"))}
    environment = {
        **own,
        "MAGI2_CKPT_ROOT": str(DEMO),
        "MAGI2_STORE": str(tmp_path / "store"),
        "MAGI2_DEVICE": "cpu",
        "MAGI2_PRICE_PER_ACCELERATOR_HOUR": "3",
    }
    profiles = ("--profile", "demo", "--profile", "demo-refined")
    command = [sys.executable, "-m", "magi2.cli.main", "accept", *profiles, "--json", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    steps = {step["step"]: step for step in report["steps"]}
    assert list(steps) == [step.name for step in STEPS]
    assert {name for name, step in steps.items() if step["verdict"] == "not run"} <= NOT_HERE
    assert all(step["reason"] for step in steps.values() if step["verdict"] == "not run")
    assert {step["verdict"] for name, step in steps.items() if name not in NOT_HERE} == {"passed"}
    assert [each["profile"] for each in report["expected"]] == ["demo", "demo-refined"]
    assert all(each["seconds"] > 0 and each["clips_a_night"] > 0 for each in report["expected"])
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == report
    assert str(tmp_path) not in (tmp_path / "out" / "report.md").read_text()
