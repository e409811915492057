"""`magi2 schedule find`: prompts and weights in, a schedule and a report out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from magi2.sampling.schedule import Schedule
from tests.cli.cli_said import Magi2
from tests.render_helpers import SMALL

SETTINGS = ("--profile", "tiny-preview", *(word for each in (*SMALL, "preview.steps=5") for word in ("--set", each)))


def prompts(folder: Path, count: int) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"a heron {n}", "name": f"heron {n}"}) + "\n" for n in range(count)))
    return path


@pytest.mark.slow
@pytest.mark.faults
def test_a_schedule_is_found_and_tried_on_other_prompts(tmp_path: Path, magi2: Magi2) -> None:
    said = magi2(
        "schedule", "find", "--prompts", prompts(tmp_path, 2), *SETTINGS, "--share", "0.7", "--others", 1, "--trials", 2
    )
    assert said.code in (0, 1), said.err  # random weights need not be confirmed
    (found,) = json.loads((tmp_path / "schedule.json").read_text())["found"]
    schedule = Schedule.from_json(found["schedule"])
    assert schedule.evaluations(5) == found["evaluations"] <= 7
    assert [each["clip"] for each in found["searched"]] == ["heron 0"]
    assert [each["clip"] for each in found["others"]] == ["heron 1"]
    assert 0 < len(found["trials"]) <= 2


def test_what_cannot_be_searched_is_refused(tmp_path: Path, magi2: Magi2) -> None:
    for options, reason in ((("--share", "1.5"), "between 0 and 1"), (("--others", 2), "needs more than 2 clips")):
        said = magi2("schedule", "find", "--prompts", prompts(tmp_path, 2), *SETTINGS, *options)
        assert said.code == 2 and reason in said.err
