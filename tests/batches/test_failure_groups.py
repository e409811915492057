"""Failures that differ in numbers alone are one kind, counted and shown by its first clips."""

from __future__ import annotations

import pytest

from magi2.batches.failure_groups import FIRST_CLIPS, Failure, group_failures, masked
from magi2.batches.failure_limit import FailureCount, OnLimit


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("the prompt has 19,223 tokens", "the prompt has # tokens"),
        ("clip a690f3bfb7f6: 1.5 s at 10:03", "clip #: # s at #:#"),
        ("video_embeds is bfloat16[1, 553, 128]", "video_embeds is bfloat#[#, #, #]"),
        ("a faded facade", "a faded facade"),
    ],
)
def test_numbers_and_ids_are_masked_and_words_are_not(told: str, shown: str) -> None:
    assert masked(told) == shown


def test_failures_of_one_stage_and_code_are_one_group_whatever_their_numbers() -> None:
    long = [Failure(f"clip {n}", "encode", "prompt_too_long", f"{n},223 tokens") for n in range(1, 7)]
    others = [Failure("x", "decode", "contract", "NaN"), Failure("y", "encode", "contract", "NaN")]
    first, *rest = group_failures([*others, *long])
    assert (first.stage, first.code, first.count, first.example) == ("encode", "prompt_too_long", 6, "# tokens")
    assert first.clips == [f"clip {n}" for n in range(1, FIRST_CLIPS + 1)]
    assert [(each.stage, each.count) for each in rest] == [("decode", 1), ("encode", 1)]


def test_a_limit_that_somebody_set_stops_and_none_judges_at_the_end() -> None:
    chosen = [OnLimit.chosen(choice, limit) for choice, limit in ((None, 0), (None, 1), ("continue", 1), ("stop", 0))]
    assert chosen == ["continue", "stop", "continue", "stop"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (FailureCount(12, 10, "stop"), "12 failed of at most 10: stopped"),
        (FailureCount(10, 10, "stop"), "10 failed of at most 10"),
        (FailureCount(12, 10, "continue"), "12 failed of at most 10"),
    ],
)
def test_failures_are_told_beside_their_limit(count: FailureCount, text: str) -> None:
    assert str(count) == text
