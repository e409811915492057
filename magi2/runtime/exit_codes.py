"""How a process says what kind of failure it died of: one reserved exit code for each class of error."""

from __future__ import annotations

import signal
from enum import IntEnum

from magi2.errors import (
    CancelledError,
    CorruptedArtifactError,
    InfrastructureError,
    InputError,
    Magi2Error,
    OutOfMemoryError,
)


class ExitCode(IntEnum):
    """Clear of what Python (1, 2), shells (126 to 255) and Airflow (99, 100) use."""

    DONE = 0
    OTHER = 110
    INPUT = 111
    INFRASTRUCTURE = 112
    OUT_OF_MEMORY = 113
    CORRUPTED_ARTIFACT = 114
    CANCELLED = 115


_ERRORS: dict[ExitCode, type[Magi2Error]] = {
    ExitCode.INPUT: InputError,
    ExitCode.INFRASTRUCTURE: InfrastructureError,
    ExitCode.OUT_OF_MEMORY: OutOfMemoryError,
    ExitCode.CORRUPTED_ARTIFACT: CorruptedArtifactError,
    ExitCode.CANCELLED: CancelledError,
}


def exit_code(error: Magi2Error) -> ExitCode:
    """The code of the error's class; `OTHER` for a class that has none of its own."""
    return next((code for code, kind in _ERRORS.items() if isinstance(error, kind)), ExitCode.OTHER)


def error_from_exit(code: int, message: str, *, stopped: bool = False, detail: str = "") -> Magi2Error:
    """The error that a process's end stands for. `code` is non-zero, and minus the signal's number when one ended it.

    `stopped` says that we ended it. A death by a signal that was not ours is the machine's fault (the kernel short of
    memory, a node going down, a driver's abort) and is retried; an exit code that is not reserved is not. `detail`
    goes to the end of the message.
    """
    if stopped:
        return CancelledError(f"{message}: stopped{detail}")
    if code < 0:
        return InfrastructureError(f"{message}: ended by {_signal_name(-code)}{_CAUSES.get(-code, '')}{detail}")
    known = code in set(ExitCode)
    kind = _ERRORS.get(ExitCode(code), Magi2Error) if known else Magi2Error
    return kind(f"{message}: exit code {code}{f' ({ExitCode(code).name.lower()})' if known else ''}{detail}")


def _signal_name(number: int) -> str:
    """`SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_CAUSES: dict[int, str] = {signal.SIGKILL: " (somebody's kill -9, or the kernel was short of memory)"}
