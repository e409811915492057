"""One Airflow on the defaults for all tests of this folder, and one on real servers for those that want it.

What they take for lost is lost after a minute instead of five, and tried again at once. A busy machine may keep a
heartbeat waiting for half of that.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from magi2.catalog.migrate import migrate
from magi2.config.settings import Settings
from tests.airflow import airflow_site, fault_site
from tests.airflow.fault_site import DAG_ID, IMPATIENT, Calm, Servers, Task
from tests.random_weights import NOISE_IS_GOOD
from tests.real_servers import postgresql, seaweedfs
from tools.local_airflow import LocalAirflow

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="package")
def site(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_checkpoint: Path,
    small_configs: Path,
    input_roots: str,
    airflow_template: Path,
) -> Iterator[airflow_site.Site]:
    """On SQLite, with a store on disk: the defaults."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "inbox").mkdir()
    environment = {
        **IMPATIENT,
        **NOISE_IS_GOOD,
        "MAGI2_CKPT_ROOT": str(tiny_checkpoint),
        "MAGI2_CONFIGS": str(small_configs),
        "MAGI2_STORE": str(folder / "store"),
        "MAGI2_INBOX": str(folder / "inbox"),
        "MAGI2_DELIVERY_TARGETS": json.dumps({"studio": str(folder / "studio")}),
        "MAGI2_INPUT_ROOTS": os.pathsep.join((input_roots, str(folder / "batches"))),
    }
    with LocalAirflow(folder / "airflow", environment=environment, template=airflow_template) as airflow:
        airflow.unpause(DAG_ID)
        yield airflow_site.Site(airflow, folder)


@pytest.fixture(scope="package")
def kill_site(site: airflow_site.Site) -> fault_site.Site:
    """The same, to those who kill."""
    return fault_site.Site(site.airflow)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as s3, postgresql() as postgres:
        yield Servers(s3, postgres)


@pytest.fixture(scope="module")
def server_site(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_checkpoint: Path,
    servers: Servers,
    small_configs: Path,
    input_roots: str,
) -> Iterator[fault_site.Site]:
    """On PostgreSQL, with a store on S3 and the catalog on PostgreSQL as well."""
    for database in ("airflow", "magi2"):
        servers.postgres.create(database)
    migrate(servers.url("magi2"))
    environment = {**IMPATIENT, **NOISE_IS_GOOD, **servers.environment, "MAGI2_CKPT_ROOT": str(tiny_checkpoint)}
    environment["MAGI2_INPUT_ROOTS"] = input_roots
    folder = tmp_path_factory.mktemp("server-faults")
    environment["MAGI2_CONFIGS"] = str(small_configs)
    with (
        pytest.MonkeyPatch.context() as patch,
        LocalAirflow(folder / "airflow", environment=environment, database=servers.url("airflow")) as airflow,
    ):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, environment[name])
        airflow.unpause(DAG_ID)
        yield fault_site.Site(airflow)


@pytest.fixture(scope="session")
def small_configs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published profiles, of which the tiny ones are smaller still."""
    folder = tmp_path_factory.mktemp("small") / "configs"
    shutil.copytree(Settings().configs, folder)
    tiny = folder / "profiles" / "tiny.yaml"
    smaller = {"preview": {"width": 64, "height": 32, "steps": 2}, "refiner": {"width": 80, "height": 32, "steps": 1}}
    tiny.write_text(yaml.safe_dump(yaml.safe_load(tiny.read_text()) | smaller))
    return folder


@pytest.fixture(scope="session")
def input_roots(small: Task, refined: Task) -> str:
    """The folders of all batch files of those who kill, as MAGI2_INPUT_ROOTS has them."""
    return os.pathsep.join(str(folder) for folder in (EXAMPLES, small.file.parent, refined.file.parent))


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return Task.write(tmp_path_factory.mktemp("small"), refined=False)


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path, small_configs: Path, small: Task) -> Calm:
    """What an undisturbed run of `small` makes."""
    store = tmp_path_factory.mktemp("calm")
    return small.render_calmly(Settings(ckpt_root=tiny_checkpoint, store=str(store), configs=small_configs))


@pytest.fixture(scope="session")
def refined(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return Task.write(tmp_path_factory.mktemp("refined"), refined=True)


@pytest.fixture(scope="session")
def refined_calm(
    tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path, small_configs: Path, refined: Task
) -> Calm:
    """What an undisturbed run of `refined` makes."""
    store = tmp_path_factory.mktemp("refined-calm")
    return refined.render_calmly(Settings(ckpt_root=tiny_checkpoint, store=str(store), configs=small_configs))
