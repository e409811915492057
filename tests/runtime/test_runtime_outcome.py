"""Which error stands for a group's end: a test for each row of the table, and for every row before every later one."""

from __future__ import annotations

import itertools
import signal
from dataclasses import replace
from typing import Any

import pytest

from magi2.errors import (
    CancelledError,
    ImageError,
    InfrastructureError,
    InputError,
    Magi2Error,
    MediaError,
    OutOfMemoryError,
)
from magi2.runtime.events import Failure
from magi2.runtime.exit_codes import ExitCode
from magi2.runtime.job import LostClip
from magi2.runtime.outcome import End, Facts, lost_clip, outcome
from magi2.runtime.watch import Ending

DONE = Facts("preview", 2, End(code=0), cause=None, pid=None, is_finished=True, output=lambda: "\nlast words")
UNFINISHED = replace(DONE, is_finished=False)
SILENT = Ending(1, "clip ab step 3/10", None)
FAILED = Ending(1, "clip ab step 3/10", Failure("media", "ffmpeg fell over", clip_id="ab"))
KILLED = -signal.SIGKILL


def facts(code: int | None = 0, *, fault: str | None = None, stopped: bool = False, **others: Any) -> Facts:
    return replace(UNFINISHED, end=End(code, fault, stopped), **others)


ROWS: list[tuple[str, Facts, type[Magi2Error], str]] = [
    ("stopped", facts(None, stopped=True), CancelledError, "preview: stopped"),
    ("fault", facts(None, fault="rank 1 hangs"), InfrastructureError, "preview: rank 1 hangs\nlast words"),
    ("reported", facts(cause=FAILED), MediaError, "preview: rank 1: ffmpeg fell over\nlast words"),
    (
        "died",
        facts(None, cause=SILENT, pid=77),
        InfrastructureError,
        "preview: rank 1 (process 77) died at clip ab step 3/10\nlast words",
    ),
    ("exit code", facts(ExitCode.INPUT), InputError, "preview: exit code 111 (input)\nlast words"),
    ("unfinished", facts(), InfrastructureError, "preview: ended without having finished\nlast words"),
]


@pytest.mark.parametrize(("known", "kind", "message"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_each_row_has_its_error(known: Facts, kind: type[Magi2Error], message: str) -> None:
    error = outcome(known)
    assert (type(error), str(error)) == (kind, message)


@pytest.mark.parametrize("code", [0, None])
def test_work_that_is_done_is_no_error_whether_or_not_the_command_still_ran(code: int | None) -> None:
    assert outcome(replace(DONE, end=End(code=code))) is None


def both(first: Facts, second: Facts) -> Facts:
    """What is known when the facts of two rows hold at once."""
    ends = (first.end, second.end)
    code = next((end.code for end in ends if end.code), first.end.code)
    fault, stopped = first.end.fault or second.end.fault, any(end.stopped for end in ends)
    cause, pid = first.cause or second.cause, first.pid or second.pid
    return replace(first, end=End(code, fault, stopped), cause=cause, pid=pid)


@pytest.mark.parametrize(
    ("first", "second"),
    [pytest.param(a, b, id=f"{a[0]} before {b[0]}") for a, b in itertools.combinations(ROWS, 2)],
)
def test_an_earlier_row_decides(
    first: tuple[str, Facts, type[Magi2Error], str], second: tuple[str, Facts, type[Magi2Error], str]
) -> None:
    error, alone = outcome(both(first[1], second[1])), outcome(first[1])
    assert (type(error), str(error)) == (type(alone), str(alone))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_signal_that_ended_the_command_explains_the_silence_of_its_ranks(ranks: int) -> None:
    error = outcome(facts(KILLED, cause=SILENT, pid=77, ranks=ranks))
    assert isinstance(error, InfrastructureError) and "at clip ab step 3/10: ended by SIGKILL" in str(error)


@pytest.mark.parametrize(
    ("code", "ending"), [(1, "exit code 1"), (0, "ended at clip ab step 3/10 without"), (None, "ended at")]
)
def test_a_single_rank_that_died_is_judged_by_its_exit_code(code: int | None, ending: str) -> None:
    error = outcome(facts(code, cause=SILENT, pid=77, ranks=1))
    assert ending in str(error) and "(process" not in str(error)


def test_a_single_rank_is_not_named_by_its_number() -> None:
    assert str(outcome(facts(cause=FAILED, ranks=1))) == "preview: ffmpeg fell over\nlast words"


@pytest.mark.parametrize(("code", "kind"), [("image", ImageError), ("out_of_memory", OutOfMemoryError)])
def test_a_reported_failure_is_quoted_from_the_output_only_when_it_quotes_no_user(
    code: str, kind: type[Magi2Error]
) -> None:
    error = outcome(facts(cause=Ending(0, "", Failure(code, "a private prompt"))))
    assert type(error) is kind and ("last words" in str(error)) == (kind is OutOfMemoryError)


@pytest.mark.parametrize(("output", "message"), [("\nTraceback", "unforeseen error\nTraceback"), ("", "a prompt")])
def test_an_unforeseen_error_is_told_by_its_traceback_or_else_by_its_message(output: str, message: str) -> None:
    error = outcome(facts(cause=Ending(0, "", Failure("error", "a prompt")), output=lambda: output))
    assert (type(error), str(error)) == (Magi2Error, f"preview: rank 0: {message}")


@pytest.mark.parametrize("name", [row[0] for row in ROWS])
def test_a_clip_is_lost_only_when_its_failure_decides(name: str) -> None:
    known = next(row[1] for row in ROWS if row[0] == name)
    failed = replace(known, cause=FAILED)
    expected = None if name in ("stopped", "fault") else LostClip("ab", "media", "ffmpeg fell over")
    assert lost_clip(failed) == expected
    assert (type(outcome(failed)) is MediaError) == (expected is not None)


def test_a_failure_of_no_clip_loses_none() -> None:
    assert lost_clip(facts(cause=Ending(0, "", Failure("media", "no ffmpeg")))) is None
    assert lost_clip(facts(cause=SILENT)) is None and lost_clip(DONE) is None


def test_the_output_is_not_read_where_it_is_not_quoted() -> None:
    def unread() -> str:
        pytest.fail("the output was read")

    assert isinstance(outcome(facts(stopped=True, output=unread)), CancelledError)
    assert outcome(replace(DONE, output=unread)) is None
