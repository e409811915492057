"""Held-out batches and the summary of their verdicts."""

from __future__ import annotations

import json

import pytest

from demo_world.judge.summary import summarise
from demo_world.judge.verdict import Measured, Verdict
from demo_world.prompts import main
from demo_world.reading import read_caption
from demo_world.scenes import Scene

MEASURED = Measured("red", "blue", "circle", "small", "bounce", "slow", "beeps")
RIGHT = {"colour": True, "background": True, "shape": True, "motion": True, "sound": True}


def test_a_batch_of_held_out_prompts_is_the_same_every_time_and_never_trained_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--count", "40", "--seeds-per-prompt", "2"]) == 0
    written = capsys.readouterr().out
    main(["--count", "40", "--seeds-per-prompt", "2"])
    assert capsys.readouterr().out == written
    rows = [json.loads(line) for line in written.splitlines()]
    assert len(rows) == 80 and len({row["name"] for row in rows}) == 80
    for row in rows:
        asked = read_caption(row["prompt"])
        assert Scene(
            asked.shape, asked.colour, asked.background, "small", "slow", asked.motion, asked.sound
        ).is_held_out


def test_percentages_count_only_what_was_asked_for() -> None:
    verdicts = [
        Verdict({**RIGHT, "size": True, "sync": True}, MEASURED, (0.0, 0.08, 0.04)),
        Verdict({**RIGHT, "shape": False}, MEASURED, (0.4,)),
    ]
    assert summarise(verdicts) == {
        **{"colour": 100.0, "background": 100.0, "shape": 50.0, "motion": 100.0, "size": 100.0, "sound": 100.0},
        **{"all_five": 50.0, "sync": 75.0, "clips": 2},
    }
