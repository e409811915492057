"""A group is ended in time though store or catalog take every request and answer none: by a cancel, and as hung."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from magi2.artifacts.local import LocalStore
from magi2.catalog.migrate import migrate
from magi2.errors import CancelledError, InfrastructureError, Magi2Error
from magi2.jobs.launch import launch
from magi2.jobs.recorder import CatalogRecorder
from magi2.jobs.run import OnEvent, StageWork, run_stage_job
from magi2.parallel.layout import ONE_RANK
from magi2.recipes.result import StageResult
from magi2.runtime.events import Event, Step
from magi2.runtime.job import StageJob
from magi2.runtime.launcher import Launcher
from magi2.runtime.watch import Limits
from magi2.types import StageName
from tests.jobs.job_samples import SampleDeployment, planned, work_of
from tests.real_servers import PostgresServer, postgresql, seaweedfs
from tests.relay import Relay
from tests.runtime.runtime_helpers import QUICK, WORKER, Machine, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.faults]

WORKER_S = 60.0  # from a worker's start to its first look at the store, on a busy machine


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    with postgresql() as server:
        yield server


class Asked(Relay):
    """A relay that is mute and knows whether somebody asked."""

    @property
    def is_asked(self) -> bool:
        return len(self._open) > 1


def stop_and_see_it_end(machine: Machine, job: StageJob, relay: Asked) -> float:
    """Seconds from a stop, once the real worker waits for a mute server, until nothing of its group is left."""
    launcher, ended = Launcher(folder=machine.folder, limits=QUICK), list[Magi2Error]()

    def run() -> None:
        try:
            launcher.run(job)
        except Magi2Error as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: relay.is_asked, WORKER_S)
    finally:
        launcher.stop()
    seconds = wait_until(lambda: not machine.find("magi2.runtime"), 20.0)
    thread.join()
    assert [type(error) for error in ended] == [CancelledError]
    return seconds


def test_cancel_ends_a_group_that_waits_for_a_mute_store(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with seaweedfs(tmp_path) as server:
        host, _, port = server.endpoint.removeprefix("http://").rpartition(":")
        relay = Asked((host, int(port)), guard_s=0)
        relay.mute.set()
        for name, value in (("ACCESS_KEY_ID", server.access_key), ("SECRET_ACCESS_KEY", server.secret_key)):
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setenv("MAGI2_CATALOG", f"sqlite:///{tmp_path}/catalog.sqlite")
        store = f"s3://{server.bucket}/?endpoint=http://127.0.0.1:{relay.port}"
        seconds = stop_and_see_it_end(machine, StageJob("batch", 0, StageName.ENHANCE, store), relay)
        relay.close()
    print(f"mute store: the group was gone {seconds:.1f} s after the stop")


def test_cancel_ends_a_group_that_waits_for_a_mute_catalog(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, postgres: PostgresServer
) -> None:
    migrate(postgres.create("mute"))
    relay = mute_relay(postgres)
    monkeypatch.setenv("MAGI2_CATALOG", f"postgresql+psycopg2://postgres@127.0.0.1:{relay.port}/mute")
    planned(LocalStore(machine.store))
    seconds = stop_and_see_it_end(machine, StageJob("batch", 0, StageName.ENHANCE, str(machine.store)), relay)
    relay.close()
    print(f"mute catalog: the group was gone {seconds:.1f} s after the stop")


@pytest.mark.parametrize("end", ["hang", "stop"])
def test_group_is_watched_while_the_catalog_is_mute(
    machine: Machine, tmp_path: Path, postgres: PostgresServer, end: str
) -> None:
    migrate(postgres.create("mute"))
    relay = Asked(next(Path(postgres.folder).glob(".s.PGSQL.*[0-9]")), guard_s=0)
    deployment = SampleDeployment(tmp_path)
    catalog = f"postgresql+psycopg2://postgres@127.0.0.1:{relay.port}/mute"
    deployment.settings = replace(deployment.settings, catalog=catalog)
    assert isinstance(deployment.store, LocalStore)
    plan, recorder = planned(deployment.store), Watched(deployment.store, lambda: deployment.catalog)
    recorder.on_plan(plan)
    is_muted = threading.Event()
    recorder.machine = machine
    machine.act("wait")

    def compute(work: StageWork, on_event: OnEvent) -> list[StageResult]:
        def mute_at_step(event: Event) -> None:
            if isinstance(event, Step):
                relay.mute.set()
                is_muted.set()
            on_event(event)

        limits = replace(QUICK, step=3.0) if end == "hang" else Limits(grace=1)
        return launch(work, mute_at_step, layout=ONE_RANK, limits=limits, should_stop=lambda: is_stopped(end))

    def is_stopped(end: str) -> bool:
        return end == "stop" and is_muted.is_set()

    work = work_of(plan, deployment.store, StageName.PREVIEW)
    work = replace(work, job=replace(work.job, worker_module=WORKER))
    with pytest.raises(InfrastructureError if end == "hang" else CancelledError, match=r"hangs|stopped"):
        run_stage_job(work, deployment, compute, recorder=recorder)
    relay.close()
    assert recorder.was_gone == [True]


class Watched(CatalogRecorder):
    """Enters a step in the mute catalog, which takes as long as it takes, and then sees that the group is gone."""

    machine: Machine

    def on_event(self, job: StageJob, event: Event) -> None:
        if isinstance(event, Step):
            self.was_gone = list[bool]()
            wait_until(lambda: not self.machine.find(WORKER), WORKER_S)
            super().on_event(job, event)
            self.was_gone.append(True)


def mute_relay(postgres: PostgresServer) -> Asked:
    relay = Asked(next(Path(postgres.folder).glob(".s.PGSQL.*[0-9]")), guard_s=0)
    relay.mute.set()
    return relay
