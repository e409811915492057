"""Kills under a real scheduler and LocalExecutor: the batch completes by retries as if nothing had happened.

`MAGI2_TEST_SEED` chooses who dies in which stage of the quick one; every victim in every stage has the marker `faults`.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from magi2.types import StageName
from tests.airflow.fault_site import LATE, SEED, STAGES, VICTIMS, Calm, Fault, Site, Task, any_fault, suffer

RNG = random.Random(SEED)
STRUCK = (StageName.ENHANCE, *LATE)
ONE_EACH = [any_fault(victim, RNG, (stage,)) for victim, stage in zip(RNG.sample(VICTIMS, 4), STRUCK, strict=True)]
ALL = [any_fault(victim, RNG, (stage,)) for victim in VICTIMS for stage in STAGES]


def test_batch_survives_a_kill_of_every_kind(kill_site: Site, small: Task, calm: Calm) -> None:
    suffer(kill_site, small, calm, *ONE_EACH)


@pytest.mark.faults
@pytest.mark.parametrize("fault", ALL, ids=str)
def test_batch_survives_every_kill(kill_site: Site, refined: Task, refined_calm: Calm, fault: Fault) -> None:
    refined_calm.copy_until(fault.stage, Path(kill_site.settings.store))
    suffer(kill_site, refined, refined_calm, fault)
