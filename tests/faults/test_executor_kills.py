"""Kills under a real scheduler and LocalExecutor: the batch completes by retries as if nothing had happened.

`MAGI2_TEST_SEED` chooses the stages of the quick subset; every victim in every stage runs with the marker `faults`.
"""

from __future__ import annotations

import random
from contextlib import nullcontext

import pytest
from fault_site import (
    SEED,
    STAGES,
    VICTIMS,
    Digests,
    Fault,
    Site,
    Task,
    any_fault,
    check_as_if_nothing_happened,
)

from magi2.types import StageName

pytestmark = pytest.mark.airflow

RNG = random.Random(SEED)
# The profile of the quick subset has no refiner. Every other kill comes when half of a stage is finished.
EARLY, LATE = (StageName.ENHANCE, StageName.ENCODE), (StageName.PREVIEW, StageName.DECODE, StageName.MUX)
QUICK = [any_fault(victim, RNG, LATE if number % 2 else EARLY + LATE) for number, victim in enumerate(VICTIMS)]
ON_SERVERS = any_fault("task", RNG, LATE)
ALL = [any_fault(victim, RNG, (stage,)) for victim in VICTIMS for stage in STAGES]


def suffer(site: Site, task: Task, calm: Digests, fault: Fault) -> None:
    """A run with a kill, to its happy end."""
    print(f"MAGI2_TEST_SEED={SEED}: {fault}")
    run_id = site.start(task)
    finished = site.strike(fault)
    with site.scheduler_replaced() if fault.victim == "scheduler" else nullcontext():
        assert site.wait(run_id) == "success"
        if fault.victim != "scheduler":
            assert site.attempts(run_id, fault.stage) > 1
        check_as_if_nothing_happened(site, run_id, calm, finished)


@pytest.mark.parametrize("fault", QUICK, ids=str)
def test_batch_survives_a_kill(site: Site, small: Task, calm: Digests, fault: Fault) -> None:
    site.empty()
    suffer(site, small, calm, fault)


@pytest.mark.servers
@pytest.mark.parametrize("fault", [ON_SERVERS], ids=str)
def test_batch_on_s3_and_postgres_survives_a_kill(server_site: Site, small: Task, calm: Digests, fault: Fault) -> None:
    suffer(server_site, small, calm, fault)


@pytest.mark.faults
@pytest.mark.parametrize("fault", ALL, ids=str)
def test_batch_survives_every_kill(site: Site, refined: Task, refined_calm: Digests, fault: Fault) -> None:
    site.empty()
    suffer(site, refined, refined_calm, fault)
