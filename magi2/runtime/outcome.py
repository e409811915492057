"""Which error a group of processes ended with, decided by what is known once it has ended."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from magi2.errors import InfrastructureError, Magi2Error, error_from_code, quotes_users
from magi2.runtime.events import Failure
from magi2.runtime.exit_codes import error_from_exit
from magi2.runtime.job import LostClip
from magi2.runtime.watch import Ending


@dataclass(frozen=True)
class End:
    """Why a group is not watched any longer: its exit code, what is wrong with its ranks, or that it was stopped.

    Without any of these its ranks had ended, and the command still ran.
    """

    code: int | None = None
    fault: str | None = None
    stopped: bool = False


@dataclass(frozen=True)
class Facts:
    """What is known of a group that has ended.

    `cause` is the rank whose end made the group fail, if one did, and `pid` that rank's process. `is_finished` says
    that every rank told that its work is done. `output` gives what to quote of the group's output, and is called only
    for an error that quotes it.
    """

    title: str
    ranks: int
    end: End
    cause: Ending | None
    pid: int | None
    is_finished: bool
    output: Callable[[], str]


def outcome(facts: Facts) -> Magi2Error | None:
    """The error that stands for a group's end, or None when its work is done. The first row that holds decides:

    ==========================================================  ==================================================
    it was stopped                                              CancelledError
    its ranks were silent, late or hung                         InfrastructureError that names them
    a rank reported a failure                                   the error of the failure's code, naming the rank
    one rank of several ended without a word, and no signal     InfrastructureError that names rank and process
    ended the command, which would have ended the rank as well
    the exit code is not 0, or minus a signal's number          the error of that code, where the rank was
    not every rank told that its work is done                   InfrastructureError
    none of these, whether or not the command still ran         None
    ==========================================================  ==================================================
    """
    end, cause = facts.end, facts.cause
    if end.stopped:
        return error_from_exit(-signal.SIGTERM, facts.title, stopped=True)
    if end.fault:
        return InfrastructureError(f"{facts.title}: {end.fault}{facts.output()}")
    if cause and cause.failure:
        return _reported(facts, cause.rank, cause.failure)
    where = f" at {cause.position}" if cause else ""
    if cause and facts.ranks > 1 and not _is_signal(end.code):
        died = f"rank {cause.rank} (process {facts.pid}) died{where}"
        return InfrastructureError(f"{facts.title}: {died}{facts.output()}")
    if end.code:
        return error_from_exit(end.code, f"{facts.title}{where}", detail=facts.output())
    if not facts.is_finished:
        return InfrastructureError(f"{facts.title}: ended{where} without having finished{facts.output()}")
    return None


def lost_clip(facts: Facts) -> LostClip | None:
    """The clip that the group did not survive, if the outcome is a failure that a rank reported, and of a clip."""
    failure = facts.cause.failure if facts.cause else None
    if facts.end.stopped or facts.end.fault or failure is None or failure.clip_id is None:
        return None
    return LostClip(failure.clip_id, failure.code, failure.message)


def _reported(facts: Facts, rank: int, failure: Failure) -> Magi2Error:
    # What may quote a prompt stands in the message or in the output's excerpt, not in both.
    is_unforeseen = failure.code == Magi2Error.code
    output = "" if quotes_users(failure.code) and not is_unforeseen else facts.output()
    message = "unforeseen error" if is_unforeseen and output else failure.message
    named = f"rank {rank}: " if facts.ranks > 1 else ""
    return error_from_code(failure.code, f"{facts.title}: {named}{message}{output}")


def _is_signal(code: int | None) -> bool:
    return code is not None and code < 0
