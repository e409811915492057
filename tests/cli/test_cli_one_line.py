"""A clip's error takes one line of the progress and one cell of the table, whatever text it came with."""

from __future__ import annotations

import pytest

from magi2.cli import render
from magi2.cli.console import TerminalProgress
from magi2.config.settings import Settings
from magi2.delivery.targets import Targets
from magi2.errors import Magi2Error
from magi2.recipes.result import StageResult
from magi2.stages.render import Outcome
from magi2.types import Clip, StageName

CLIP = Clip("a heron", 1, "tiny", "digest", names=("heron",))
ERROR = Magi2Error("at 18:24:\n" + "    source of a kernel\n" * 90 + "its range must be a power of 2")
FAILED = StageResult(StageName.PREVIEW, CLIP, "failed", 1.5, error=ERROR)


def test_progress_tells_a_failed_clip_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with TerminalProgress() as progress:
        progress.clip_finished(FAILED)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert line == f"{CLIP.short_id} preview failed: at 18:24: … its range must be a power of 2"


def test_the_row_of_a_failed_clip_has_one_line() -> None:
    row = render._row(Outcome(CLIP, [FAILED]), None, (), Targets.of(Settings()))
    assert row["error"] == "at 18:24: … its range must be a power of 2"
