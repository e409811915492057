"""Kills under a real scheduler and LocalExecutor: the batch completes by retries as if nothing had happened.

`MAGI2_TEST_SEED` chooses the stages of the quick subset; every victim in every stage runs with the marker `faults`.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.fault_site import EARLY, LATE, SEED, STAGES, VICTIMS, Calm, Fault, Site, Task, any_fault, suffer

RNG = random.Random(SEED)
# Every other kill comes, most often, when half of a stage is finished.
ONE_EACH = [any_fault(victim, RNG, LATE if number % 2 else EARLY + LATE) for number, victim in enumerate(VICTIMS)]
QUICK = [fault for fault in ONE_EACH if fault.victim != "task"]  # which dies in test_faults_on_s3_and_postgres.py
ALL = [any_fault(victim, RNG, (stage,)) for victim in VICTIMS for stage in STAGES]


@pytest.mark.parametrize("fault", QUICK, ids=str)
def test_batch_survives_a_kill(site: Site, small: Task, calm: Calm, fault: Fault) -> None:
    calm.copy_until(fault.stage, Path(site.settings.store))
    suffer(site, small, calm, fault)


@pytest.mark.faults
@pytest.mark.parametrize("fault", ALL, ids=str)
def test_batch_survives_every_kill(site: Site, refined: Task, refined_calm: Calm, fault: Fault) -> None:
    refined_calm.copy_until(fault.stage, Path(site.settings.store))
    suffer(site, refined, refined_calm, fault)
