"""Each class of error has a code of its own that leads back to it."""

from __future__ import annotations

import signal

import pytest

from magi2 import errors
from magi2.errors import CancelledError, InfrastructureError, Magi2Error, PromptTooLongError, error_from_code
from magi2.runtime.exit_codes import ExitCode, error_from_exit, exit_code

CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Magi2Error)]
CODED = [kind for kind in CLASSES if "code" in vars(kind)]


@pytest.mark.parametrize("kind", CLASSES)
def test_verdict_on_retrying_survives_the_process(kind: type[Magi2Error]) -> None:
    error = error_from_exit(exit_code(kind("message")), "where")
    assert error.retryable == kind.retryable
    assert issubclass(kind, type(error))


@pytest.mark.parametrize("kind", CODED)
def test_code_leads_back_to_the_very_class(kind: type[Magi2Error]) -> None:
    error = error_from_code(kind.code, "message")
    assert type(error) is kind
    assert str(error) == "message"  # the hint is in the message that came over


def test_codes_are_distinct_and_clear_of_others() -> None:
    codes = [code for code in ExitCode if code]
    assert len(set(codes)) == 6
    assert all(100 < code < 126 for code in codes)


def test_unknown_code_is_no_reason_to_retry() -> None:
    for error in (error_from_exit(1, "where"), error_from_exit(250, "where"), error_from_code("from_the_future", "m")):
        assert type(error) is Magi2Error


def test_signals_are_the_machines_fault_unless_they_were_ours() -> None:
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, 64):
        assert type(error_from_exit(-number, "where")) is InfrastructureError
        assert type(error_from_exit(-number, "where", stopped=True)) is CancelledError
    assert str(error_from_exit(-9, "where", detail="\nlog")).startswith("where: ended by SIGKILL (")


def test_prompt_too_long_is_input() -> None:
    assert exit_code(PromptTooLongError("8,114 tokens, limit 7,000")) == ExitCode.INPUT
