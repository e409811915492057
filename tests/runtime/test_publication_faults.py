"""Kills at every point of every stage: after a retry all is as if nothing had happened. Linux only.

`MAGI2_TEST_SEED` chooses the cases of the quick subset, and the whole matrix runs with the marker `faults`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from magi2.artifacts import LocalStore, sha256_file
from magi2.batches.results import read_results
from magi2.errors import CancelledError, InfrastructureError
from magi2.runtime.job import StageJob
from magi2.runtime.launcher import Launcher
from magi2.types import StageName
from tests.runtime.runtime_helpers import LAUNCHER, QUICK, REPOSITORY, Machine, wait_until
from tests.runtime.stub_stage_worker import CLIPS, PAYLOADS, STAGES, recipe

WORKER = "tests.runtime.stub_stage_worker"
SEED = int(os.environ.get("MAGI2_TEST_SEED", "20"))
POINTS = ("loading", "step 1", "step 3", "published", "told", "results")
PUBLISH_STEPS = 200  # more than there are: a case beyond the last one ends without a fault
SURE_STEPS = 70  # no more than there are


@dataclass(frozen=True)
class Fault:
    stage: str
    clip: int
    point: str
    victim: str
    signal: int

    def __str__(self) -> str:
        number = signal.Signals(self.signal).name
        return f"{number} to {self.victim} at {self.stage}, clip {self.clip}, {self.point}"


def matrix(rng: random.Random) -> list[Fault]:
    """Every point of every stage, on the worker; on the launcher a sample. Publication is the same code for all stages:
    the preview's is killed at every step, the others' at every third.
    """
    faults = []
    for stage in STAGES:
        stride = 1 if stage is StageName.PREVIEW else 3
        steps = [f"publish {number}" for number in range(rng.randint(1, stride), PUBLISH_STEPS + 1, stride)]
        for point in (*POINTS, *steps):
            faults.append(Fault(stage.value, _clip(point, rng), point, "child", signal.SIGKILL))
        for point in (*POINTS, *rng.sample(steps[: SURE_STEPS // stride], 5)):
            number = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
            faults.append(Fault(stage.value, _clip(point, rng), point, "launcher", number))
    return faults


def quick_subset() -> list[Fault]:
    """One case of every stage, half of them inside publication, two of them on the launcher."""
    rng = random.Random(SEED)
    faults = []
    for number, stage in enumerate(rng.sample(STAGES, len(STAGES))):
        point = f"publish {rng.randint(1, SURE_STEPS)}" if number % 2 else rng.choice(POINTS)
        victim = "launcher" if number < 2 else "child"
        faults.append(Fault(stage.value, _clip(point, rng), point, victim, signal.SIGKILL))
    return faults


def _clip(point: str, rng: random.Random) -> int:
    return 0 if point in ("loading", "results") else rng.randrange(len(CLIPS))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for every stage with the store as it is once the stage has run undisturbed."""
    root = tmp_path_factory.mktemp("reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        for stage in STAGES:
            job = StageJob("batch", 0, stage, str(root / "now" / "store"), worker_module=WORKER)
            result = Launcher(folder=root / "run", limits=QUICK).run(job)
            assert result.count("made") == len(CLIPS)
            shutil.copytree(root / "now", root / stage.value)
    return root


def digests(store: LocalStore) -> dict[str, str]:
    """SHA-256 of all payloads by stage, key and name; reading them checks them."""
    return {
        f"{stage}/{key}/{name}": sha256_file(store.fetch(stage, key, name))
        for stage in STAGES
        for key in store.keys(stage)
        for name in PAYLOADS
    }


def check(case: Path, expected: LocalStore, stage: StageName, fault: Fault, was_there: set[str]) -> None:
    """Equal to an undisturbed run, nothing half there, nothing done twice."""
    store = LocalStore(case / "store")
    assert digests(store) == digests(expected)
    rows = read_results(store, "batch", 0, stage)
    assert [row.key for row in rows] == [recipe(stage, clip).key for clip in CLIPS]
    store.sweep(older_than_hours=0)
    for folder in {path.parent for path in (store.root / "artifacts").rglob("*") if path.is_file()}:
        manifest = store.find(folder.parent.parent.name, folder.name)
        assert manifest is not None, "files without a manifest"
        files = {payload.file for payload in manifest.payloads.values()} | {"manifest.json"}
        assert {path.name for path in folder.iterdir()} == files
    assert not list((store.root / "scratch").iterdir())
    made = Counter((case / "journal").read_text().splitlines())
    for number, clip in enumerate(CLIPS):
        again = number == fault.clip and recipe(stage, clip).key not in was_there
        assert 1 <= made[f"{stage.value} {number}"] <= 1 + again


def run_case(machine: Machine, reference: Path, case: Path, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> bool:
    """One killed attempt and its retry; whether the fault came to pass."""
    stage = StageName(fault.stage)
    if stage is not STAGES[0]:
        shutil.copytree(reference / STAGES[STAGES.index(stage) - 1].value, case)
    monkeypatch.setenv("STUB_FAULT", json.dumps(asdict(fault)))
    job = StageJob("batch", 0, stage, str(case / "store"), worker_module=WORKER)
    if fault.victim == "launcher":
        values = {"stage": stage.value, "worker_module": WORKER}
        command = [sys.executable, "-m", LAUNCHER, str(machine.folder), job.store, json.dumps(values)]
        launched = subprocess.run(command, capture_output=True, text=True, timeout=60)
        ended_well = launched.returncode == 0
        assert ended_well or launched.returncode == (1 if fault.signal == signal.SIGTERM else -fault.signal)
    else:
        try:
            machine.launcher().run(job)
            ended_well = True
        except (InfrastructureError, CancelledError):
            ended_well = False
    machine.wait_until_empty()
    wait_until(machine.lock_is_free)
    fired = (case / "fired").exists()
    # A run that had nothing more to do than to exit may be over before it dies.
    assert fired or ended_well
    was_there = set(LocalStore(case / "store").keys(stage))
    machine.launcher().run(StageJob(**{**vars(job), "attempt": 2}))
    check(case, LocalStore(reference / stage.value / "store"), stage, fault, was_there)
    return fired


@pytest.mark.parametrize("fault", quick_subset(), ids=str)
def test_retry_after_a_kill_ends_as_an_undisturbed_run(
    machine: Machine, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    print(f"MAGI2_TEST_SEED={SEED}: {fault}")
    assert run_case(machine, reference, tmp_path / "case", fault, monkeypatch), "the fault never came"


@pytest.mark.faults
@pytest.mark.parametrize("stage", STAGES)
def test_kill_at_every_point_of_a_stage(
    machine: Machine, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: StageName
) -> None:
    print(f"MAGI2_TEST_SEED={SEED}")
    fired = Counter[str]()
    for number, fault in enumerate(matrix(random.Random(SEED))):
        publishing = fault.point.startswith("publish ")
        if fault.stage != stage.value or (publishing and fault.victim == "child" and fired["beyond the end"]):
            continue
        print(fault)
        case = tmp_path / f"case-{number}"
        came = run_case(machine, reference, case, fault, monkeypatch)
        fired["publication" if publishing else "elsewhere"] += came
        fired["beyond the end"] += not came
        shutil.rmtree(case)
    assert fired["publication"] > 25
    assert fired["elsewhere"] == 2 * len(POINTS)
    assert fired["beyond the end"] == 1
