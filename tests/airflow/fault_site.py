"""A deployment in which processes are killed: who they are, and what must hold of it afterwards."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from magi2.artifacts.address import open_store
from magi2.artifacts.store import ArtifactStore
from magi2.batches.intake import plan_location
from magi2.batches.plan import BatchOptions, BatchPlan
from magi2.batches.results import read_results
from magi2.batches.schema import ReportDocument
from magi2.catalog import Catalog, ClipState, RunState, catalog_url, open_catalog
from magi2.catalog.verify import verify
from magi2.config.settings import Settings
from magi2.deployment import Deployment
from magi2.jobs.render import ClipRender
from magi2.report.build import build_report
from magi2.stages.progress import Silent
from magi2.types import ARTIFACT_FOLDERS, ARTIFACT_STAGES, NEGATIVE, StageName
from tests.airflow.airflow_site import is_alive, parent, wait_until
from tests.random_weights import THRESHOLDS
from tests.real_servers import PostgresServer, S3Server
from tests.render_helpers import SMALL, SMALL_REFINED
from tools.local_airflow import LocalAirflow

DAG_ID = "magi2_render_batch"
IMPATIENT = {
    "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).parent / "dags"),
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "15",
    "OMP_NUM_THREADS": "1",
}
SEED = int(os.environ.get("MAGI2_TEST_SEED", "20"))
START_TIMEOUT_S, RUN_TIMEOUT_S = 400.0, 400.0
VICTIMS = ("worker", "task", "supervisor", "scheduler")
STAGES: list[StageName] = list(ARTIFACT_STAGES)
LATE = (StageName.PREVIEW, StageName.DECODE, StageName.MUX)
"""Those of a profile without refiner that come after encode."""
LONG_STAGES = (*LATE, StageName.REFINE)
"""Those in which a second clip takes long enough to be killed."""

Digests = dict[str, dict[str, str]]


@dataclass(frozen=True)
class Fault:
    """SIGKILL of a process while a stage starts (after `delay_s`), or once its first clip is finished."""

    victim: str
    stage: StageName
    first_clip: bool
    delay_s: float

    def __str__(self) -> str:
        point = "after its first clip" if self.first_clip else f"{self.delay_s:.1f} s after its start"
        return f"SIGKILL to the {self.victim} in {self.stage.value} {point}"


def any_fault(victim: str, rng: random.Random, stages: Sequence[StageName]) -> Fault:
    """One of a victim's faults in some of the stages."""
    stage = rng.choice(stages)
    return Fault(victim, stage, stage in LONG_STAGES and rng.random() < 0.7, rng.uniform(0, 0.7))


@dataclass(frozen=True)
class Task:
    """A batch: its file, profile, overrides and options."""

    file: Path
    profile: str
    overrides: tuple[str, ...] = ()
    options: BatchOptions = field(default_factory=BatchOptions)

    @classmethod
    def write(cls, folder: Path, *, refined: bool) -> Task:
        """Two clips at the size of a stamp, with or without the refiner."""
        file = folder / "batch.jsonl"
        rows = [{"prompt": "A heron takes off.", "seed": 7}, {"prompt": "Rain on a tin roof.", "seed": 8}]
        file.write_text("\n".join(map(json.dumps, rows)))
        return cls(file, "tiny", SMALL_REFINED) if refined else cls(file, "tiny-preview", SMALL)

    def render_calmly(self, settings: Settings) -> Calm:
        """A run that nobody disturbs, in this process."""
        store = open_store(settings.store)
        plan = plan_location(
            str(self.file),
            settings=settings,
            store=store,
            profile=self.profile,
            overrides=self.overrides,
            options=self.options,
        )
        for shard in plan.shards:
            profiles = {shard.profile.digest(): shard.profile}
            outcomes = ClipRender(shard.clips, profiles, Deployment(settings), progress=Silent()).render()
            assert not any(outcome.failure for outcome in outcomes)
        return Calm(Path(settings.store), plan, digests(store))


@dataclass(frozen=True)
class Calm:
    """What an undisturbed run planned and left."""

    store: Path
    plan: BatchPlan
    digests: Digests

    def copy_until(self, stage: StageName, store: Path) -> None:
        """Make a store in which `stage` is the next one to do."""
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(self.store / "artifacts", store / "artifacts")
        done = (NEGATIVE, *stage.before)
        for folder in (store / "artifacts").iterdir():
            if folder.name not in done or (folder.name == NEGATIVE and StageName.ENCODE not in done):
                shutil.rmtree(folder)


@dataclass
class Site:
    """An Airflow, and the store and catalog that its tasks work on."""

    airflow: LocalAirflow

    @property
    def settings(self) -> Settings:
        return Settings.from_environment(self.airflow.environment)

    @property
    def store(self) -> ArtifactStore:
        """With a scratch folder of its own, so that a sweep touches nobody else's."""
        return open_store(self.settings.store, scratch=self.airflow.home / "scratch")

    @property
    def catalog(self) -> Catalog:
        return open_catalog(catalog_url(self.settings))

    def start(self, task: Task) -> str:
        """A run of the batch; its id."""
        options = {"on_bad_rows": task.options.on_bad_rows, "failure_limit": task.options.failure_limit}
        values = {"batch": str(task.file), "profile": task.profile, "overrides": list(task.overrides), **options}
        return self.airflow.trigger(DAG_ID, values)

    def wait(self, run_id: str) -> str:
        return self.airflow.wait_until_finished(DAG_ID, run_id, RUN_TIMEOUT_S)

    def batch_id(self, run_id: str) -> str:
        path = f"{self.airflow.run_path(DAG_ID, run_id)}/taskInstances/plan/xcomEntries/batch_id"
        return str(self.airflow.request("GET", path)["value"])

    def report(self, run_id: str) -> ReportDocument:
        return build_report(self.store, self.batch_id(run_id), thresholds=THRESHOLDS)

    def attempts(self, run_id: str, stage: StageName) -> int:
        tasks = self.airflow.tasks(DAG_ID, run_id)
        return max(int(task["try_number"]) for task in tasks if task["task_id"] == f"shard.{stage.value}")

    def processes(self) -> dict[int, list[str]]:
        """Command lines of the live processes of stages, by process id; Airflow's own guards are none."""
        home, found = str(self.airflow.home), {}
        mark = f"AIRFLOW_HOME={home}".encode()
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                    line = (folder / "cmdline").read_bytes().decode().split("\0")
                    if any(p.startswith("magi2.") for p in line) and not any(p.startswith(home) for p in line):
                        found[int(folder.name)] = line
            except OSError:
                continue
        return found

    def worker(self, stage: StageName) -> int | None:
        """The process that computes a stage."""
        for pid, line in self.processes().items():
            try:
                if "--job" in line and json.loads(Path(line[line.index("--job") + 1]).read_text())["stage"] == stage:
                    return pid
            except OSError:
                continue
        return None

    def strike(self, fault: Fault) -> set[str]:
        """Wait for the fault's moment and kill; the keys of what the stage had finished before."""
        earlier = set(self.store.keys(fault.stage))
        found: list[int] = []

        def started() -> bool:
            found.extend(filter(None, [self.worker(fault.stage)]))
            return bool(found)

        wait_until(started, START_TIMEOUT_S)
        worker = found[0]
        task = parent(worker)
        victim = {"worker": worker, "task": task, "supervisor": parent(task)}.get(fault.victim)
        scheduler = self.airflow.groups["scheduler"].pid
        assert victim != scheduler
        if fault.first_clip:
            store, deadline = self.store, time.monotonic() + START_TIMEOUT_S
            while not set(store.keys(fault.stage)) - earlier:
                assert is_alive(worker) and time.monotonic() < deadline, "its first clip was never finished"
                time.sleep(0.01)
        else:
            time.sleep(fault.delay_s)
        os.kill(worker, signal.SIGSTOP)  # so that nothing more is finished until the victim is dead
        assert is_alive(worker), f"too late for: {fault}"
        finished = set(self.store.keys(fault.stage))
        os.kill(victim or scheduler, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGCONT)
        if fault.victim == "supervisor":  # the next attempt waits until its heartbeat is missed
            wait_until(lambda: not is_alive(task) and not self.processes(), 60)
        return finished

    @contextmanager
    def scheduler_replaced(self) -> Iterator[None]:
        """A new scheduler; what the dead one started goes on, and is ended afterwards."""
        dead, guard = self.airflow.groups.pop("scheduler"), self.airflow.guards.pop("scheduler")
        try:
            self.airflow.start("scheduler")
            yield
        finally:
            dead.terminate(5.0)
            guard.dismiss()


@dataclass(frozen=True)
class Servers:
    """S3 and PostgreSQL, each with a secret to enter by."""

    s3: S3Server
    postgres: PostgresServer
    password: str = "not-to-be-told"

    @property
    def secrets(self) -> tuple[str, ...]:
        return self.s3.access_key, self.s3.secret_key, self.password

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": self.s3.access_key,
            "AWS_SECRET_ACCESS_KEY": self.s3.secret_key,
            "MAGI2_STORE": f"s3://{self.s3.bucket}/renders?endpoint={self.s3.endpoint}",
            "MAGI2_CATALOG": self.url("magi2"),
        }

    def url(self, database: str) -> str:
        return self.postgres.url(database, self.password).render_as_string(hide_password=False)


def digests(store: ArtifactStore) -> Digests:
    """SHA-256 of every payload by artifact, read from what is stored."""
    found: Digests = {}
    for folder in ARTIFACT_FOLDERS:
        for key in store.keys(folder):
            manifest = store.find(folder, key)
            assert manifest is not None
            found[f"{folder}/{key}"] = {name: payload.sha256 for name, payload in manifest.payloads.items()}
    return found


def suffer(site: Site, task: Task, calm: Calm, *faults: Fault) -> None:
    """A run with kills in the order of its stages, to its happy end."""
    run_id, finished = site.start(task), set[str]()
    with ExitStack() as replaced:
        for fault in faults:
            print(f"MAGI2_TEST_SEED={SEED}: {fault}")
            finished |= site.strike(fault)
            if fault.victim == "scheduler":
                replaced.enter_context(site.scheduler_replaced())
        assert site.wait(run_id) == "success"
        for fault in faults:
            assert fault.victim == "scheduler" or site.attempts(run_id, fault.stage) > 1
        check_as_if_nothing_happened(site, run_id, calm, finished)


def check_as_if_nothing_happened(site: Site, run_id: str, calm: Calm, finished: set[str]) -> None:
    """Equal to a calm run, nothing half there, nothing finished computed again, nobody left behind."""
    report, batch_id, store = site.report(run_id), site.batch_id(run_id), site.store
    counts = len(report.done), len(report.failed), len(report.flagged)
    assert counts == (calm.plan.clips, len(calm.plan.refused), 0)
    check_nobody_is_left(site)
    stored = digests(store)
    assert {name: stored.get(name) for name in calm.digests} == calm.digests
    check_whole(site)
    catalog = site.catalog
    for clip in report.done:
        assert clip.clip_id is not None
        record = catalog.clips.get(batch_id, clip.clip_id)
        assert record is not None and record.state is ClipState.DONE
        runs = catalog.runs.of_clip(batch_id, clip.clip_id)
        made = Counter(run.stage for run in runs if run.state is RunState.MADE)
        assert set(made.values()) <= {1}, f"computed twice: {made}"
        again = [run for run in runs if run.artifact_key in finished and run.attempt > 1]
        assert {run.state for run in again} <= {RunState.REUSED}
    for stage in STAGES:
        rows = [row for shard in range(len(calm.plan.shards)) for row in read_results(store, batch_id, shard, stage)]
        assert {row.state for row in rows} <= {"made", "reused"}
        had = {f"{stage.value}/{row.key}" for row in rows}
        assert had == {name for name in calm.digests if name.startswith(f"{stage.value}/")}


def check_nobody_is_left(site: Site) -> None:
    """No process of any stage."""
    deadline = time.monotonic() + 30
    while left := site.processes():
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def check_whole(site: Site) -> None:
    """Every artifact has its manifest, every manifest its files with their digests, and the catalog knows of all."""
    store = site.store
    store.sweep(older_than_hours=0)  # what killed attempts left, as maintenance does
    left = store.sweep(older_than_hours=0, dry_run=True)
    assert not left, left
    problems = list(verify(store, site.catalog, digests=True))
    assert not problems, problems
