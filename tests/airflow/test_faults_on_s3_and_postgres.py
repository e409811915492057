"""With S3 and PostgreSQL in place of the defaults: an example batch through the real DAG, with a kill."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, text

from magi2.batches.documents import load_report
from magi2.batches.plan import BatchOptions
from magi2.batches.schema import ReportDocument
from magi2.config.settings import Settings
from magi2.runtime.run_folder import run_folder
from magi2.types import CLIP, StageName
from tests.airflow.fault_site import (
    LATE,
    SEED,
    Calm,
    Servers,
    Site,
    Task,
    any_fault,
    check_as_if_nothing_happened,
    check_nobody_is_left,
    check_whole,
)
from tools.demo import find_batch

EXAMPLES = Task(
    Path(__file__).parents[2] / "examples" / "tiny.jsonl",
    "tiny",
    options=BatchOptions(failure_limit=1, on_bad_rows="skip"),
)
"""The last row names a picture that is not there."""
FAULT = any_fault("task", random.Random(SEED), LATE)

pytestmark = pytest.mark.deployment


@dataclass(frozen=True)
class Killed:
    """A run of the batch in which a process was killed, and the keys of what was finished before."""

    run_id: str
    finished: set[str]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path, small_configs: Path) -> Calm:
    """What an undisturbed run of the batch makes."""
    store = tmp_path_factory.mktemp("calm-examples")
    return EXAMPLES.render_calmly(Settings(ckpt_root=tiny_checkpoint, store=str(store), configs=small_configs))


def report_of(site: Site, run_id: str) -> ReportDocument:
    batch = find_batch(site.store, run_id)
    report = load_report(site.store, batch.batch_id) if batch else None
    assert report is not None
    return report


@pytest.fixture(scope="module")
def killed(server_site: Site) -> Killed:
    print(f"MAGI2_TEST_SEED={SEED}: {FAULT}")
    run_id = server_site.start(EXAMPLES)
    finished = server_site.strike(FAULT)
    assert server_site.wait(run_id) == "success"
    return Killed(run_id, finished)


def test_batch_survives_a_kill_there_too(server_site: Site, killed: Killed, calm: Calm) -> None:
    assert server_site.attempts(killed.run_id, FAULT.stage) > 1
    check_as_if_nothing_happened(server_site, killed.run_id, calm, killed.finished)


def test_all_good_rows_are_rendered(server_site: Site, killed: Killed) -> None:
    report = report_of(server_site, killed.run_id)
    assert (len(report.done), len(report.failed), len(report.flagged)) == (5, 1, 0)
    assert [clip.stage for clip in report.failed] == ["plan"]
    files = [server_site.store.fetch(StageName.MUX, clip.key or "", CLIP) for clip in report.done]
    assert all(file.stat().st_size > 10_000 for file in files)


def test_second_run_computes_nothing(server_site: Site, killed: Killed) -> None:
    run_id = server_site.start(EXAMPLES)
    assert server_site.wait(run_id) == "success"
    counts = report_of(server_site, run_id).counts
    names = ("clips_done", "clips_reused", "clips_failed", "stages_computed")
    assert [counts[name] for name in names] == [5, 5, 1, 0]


def test_store_and_catalog_agree(server_site: Site, killed: Killed) -> None:
    check_whole(server_site)
    check_nobody_is_left(server_site)


def test_no_secret_is_told(server_site: Site, servers: Servers, killed: Killed) -> None:
    places = {place: content for place, content in told(server_site, servers)}
    assert len(places) > 100
    assert not [place for place, content in places.items() if any(secret in content for secret in servers.secrets)]


def told(site: Site, servers: Servers) -> Iterator[tuple[str, str]]:
    """Everything that is written for others to read: logs, both databases, manifests and documents."""
    batches = [name.split("/")[1] for name in site.store.list_documents("batches") if name.endswith("/batch.json")]
    outputs = [path for batch in batches for path in (run_folder() / "logs").glob(f"{batch}.*")]
    assert len(outputs) >= 11
    for path in (*(path for path in site.airflow.home.rglob("*") if path.is_file()), *outputs):
        yield str(path), path.read_text(errors="replace")
    for database in ("airflow", "magi2"):
        engine = create_engine(servers.url(database))
        with engine.connect() as connection:
            for table in inspect(connection).get_table_names():
                rows = connection.scalars(text(f'SELECT row_to_json(t)::text FROM "{table}" t'))
                yield f"{database}.{table}", "\n".join(rows)
        engine.dispose()
    client = servers.s3.client()
    for item in client.list_objects(servers.s3.bucket, recursive=True):
        if item.object_name.endswith((".json", ".md")):
            yield item.object_name, client.get_object(servers.s3.bucket, item.object_name).read().decode()
