"""Lines of progress: at most one in ten seconds, a failed clip at once."""

from __future__ import annotations

import logging

import pytest

from magi2.runtime.events import ClipFinished, StageStarted, Step
from magi2.runtime.progress_log import ProgressLog


def test_line_comes_every_ten_seconds_with_counts_rate_and_time_left(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    with caplog.at_level(logging.INFO):
        log = ProgressLog("shard 3", clock=lambda: now[0])
        log.hear(StageStarted("preview", 16))
        log.hear(ClipFinished("b" * 64, "reused", "k", 0.1))
        for done in range(1, 101):
            now[0] += 0.5
            log.hear(Step("a" * 64, done, 100))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 5
    assert lines[1] == (
        "shard 3: 1 of 16 clips (0 made, 1 reused, 0 failed), clip aaaaaaaaaaaa step 40/100, 2.00 steps/s, 30 s left"
    )


def test_failed_clip_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    log = ProgressLog("shard 3", clock=lambda: 0.0)
    log.hear(ClipFinished("b" * 64, "failed", None, 0.1, (), "image", "no picture"))
    assert [record.getMessage() for record in caplog.records] == ["shard 3: clip bbbbbbbbbbbb failed: no picture"]
