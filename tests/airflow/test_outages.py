"""Store, catalog or Airflow's API go away in each stage in turn: a batch of three shards completes all the same.

Each is away for 6 s, a tenth of a minute, and so are the limits on waiting (`divided/sitecustomize.py`) a tenth of what
they are; those of Airflow itself are its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from magi2.catalog.migrate import migrate
from magi2.catalog.rebuild import rebuild
from magi2.runtime.run_folder import run_folder
from magi2.types import ARTIFACT_STAGES, StageName
from tests.airflow.airflow_site import wait_until
from tests.airflow.fault_site import (
    DAG_ID,
    IMPATIENT,
    START_TIMEOUT_S,
    Servers,
    Site,
    Task,
    check_nobody_is_left,
    check_whole,
)
from tests.relay import Relay
from tools.demo import find_batch
from tools.local_airflow import LocalAirflow, free_port

pytestmark = pytest.mark.faults

OUTAGE_S = 6.0
PROFILES = ("quick-a", "quick-b", "quick-c")
CLIPS_A_SHARD = 4
BEING_MADE = re.compile(r"artifact (\w+)/([0-9a-f]{64}) is being made")


@dataclass(frozen=True)
class Outages:
    """A site whose servers stand behind relays, by what they are."""

    site: Site
    relays: dict[str, Relay]
    folder: Path

    def task(self, name: str) -> Task:
        """Twelve clips of three profiles, of this name alone."""
        file = self.folder / f"{name}.jsonl"
        rows = [
            {"prompt": f"A heron of the {name}.", "seed": seed, "profile": profile}
            for profile in PROFILES
            for seed in range(CLIPS_A_SHARD)
        ]
        file.write_text("\n".join(map(json.dumps, rows)))
        return Task(file, PROFILES[0])

    def strike(self, name: str, batch_id: str, stage: StageName) -> None:
        """Wait until a process makes a clip of the stage; then a server is away for a while."""
        logs = run_folder() / "logs"
        wait_until(lambda: any(map(is_at_work, logs.glob(f"{batch_id}.*.{stage.value}.*"))), START_TIMEOUT_S)
        self.relays[name].refuse()
        time.sleep(OUTAGE_S)
        self.relays[name].come_back()


@pytest.fixture(scope="module")
def outages(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_checkpoint: Path,
    servers: Servers,
    small_configs: Path,
    airflow_template: Path,
) -> Iterator[Outages]:
    folder = tmp_path_factory.mktemp("outages")
    (folder / "batches").mkdir()
    shutil.copytree(small_configs, folder / "configs")
    for number, profile in enumerate(PROFILES):
        quick = {"text": {"max_tokens": 100 + number, "use_negative_prompt": False}, "preview": {"steps": 1}}
        content = {"extends": "tiny", **quick, "refiner": {"steps": 1}}
        (folder / "configs" / "profiles" / f"{profile}.yaml").write_text(yaml.safe_dump(content))
    servers.postgres.create("outages")
    migrate(servers.url("outages"))
    port, host = free_port(), servers.s3.endpoint.removeprefix("http://").rpartition(":")
    relays = {
        "store": Relay((host[0], int(host[2])), guard_s=0),
        "catalog": Relay(next(Path(servers.postgres.folder).glob(".s.PGSQL.*[0-9]")), guard_s=0),
        "api": Relay(("127.0.0.1", port), guard_s=0),
    }
    environment = {
        **{name: value for name, value in IMPATIENT.items() if "HEARTBEAT_TIMEOUT" not in name or "INTERVAL" in name},
        **servers.environment,
        "MAGI2_STORE": f"s3://{servers.s3.bucket}/outages?endpoint=http://127.0.0.1:{relays['store'].port}",
        "MAGI2_CATALOG": f"postgresql+psycopg2://postgres:x@127.0.0.1:{relays['catalog'].port}/outages",
        "MAGI2_STORE_WAIT_S": "60",
        "MAGI2_CKPT_ROOT": str(tiny_checkpoint),
        "MAGI2_CONFIGS": str(folder / "configs"),
        "MAGI2_INPUT_ROOTS": str(folder / "batches"),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{relays['api'].port}/execution/",
        "PYTHONPATH": str(Path(__file__).parent / "divided"),
    }
    with (
        pytest.MonkeyPatch.context() as patch,
        LocalAirflow(folder / "airflow", environment=environment, template=airflow_template, port=port) as airflow,
    ):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, environment[name])
        airflow.unpause(DAG_ID)
        yield Outages(Site(airflow), relays, folder / "batches")
    for relay in relays.values():
        relay.close()


@pytest.mark.parametrize("name", ["store", "catalog", "api"])
def test_batch_survives_an_outage_in_each_stage(outages: Outages, name: str) -> None:
    site, store = outages.site, outages.site.store
    run_id = site.start(outages.task(name))
    wait_until(lambda: find_batch(store, run_id), START_TIMEOUT_S)
    batch = find_batch(store, run_id)
    assert batch is not None
    for stage in ARTIFACT_STAGES:
        outages.strike(name, batch.batch_id, stage)
    assert site.wait(run_id) == "success"
    report = site.report(run_id)
    assert (len(report.done), len(report.failed), len(report.flagged)) == (len(PROFILES) * CLIPS_A_SHARD, 0, 0)
    check_nobody_is_left(site)
    rebuild(store, site.catalog)  # what the catalog missed while it was away
    check_whole(site)
    redone = made_again(batch.batch_id)
    tries = {stage.value: site.attempts(run_id, stage) for stage in StageName}
    print(f"outages: {json.dumps({name: {'made_again_in_a_group': max(redone.values(), default=0), 'tries': tries}})}")
    assert all(count <= 1 for count in redone.values()), redone


def is_at_work(log: Path) -> bool:
    """Whether a group has begun to make a clip."""
    return BEING_MADE.search(log.read_text(errors="replace")) is not None


def made_again(batch_id: str) -> Counter[str]:
    """How many artifacts each group of processes began more than once, by the name of its log."""
    found: Counter[str] = Counter()
    for log in (run_folder() / "logs").glob(f"{batch_id}.*"):
        begun = Counter(BEING_MADE.findall(log.read_text(errors="replace")))
        found[log.name] = sum(count - 1 for count in begun.values())
    with_groups = len(ARTIFACT_STAGES) - 1  # a shard that comes late finds the captions of another
    assert len(found) >= len(PROFILES) * with_groups, os.fspath(run_folder())
    return found
