"""With S3 and PostgreSQL in place of the defaults: an example batch through the real DAG, and a kill."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, text

from magi2.runtime.run_folder import run_folder
from tests.faults.fault_site import (
    LATE,
    SEED,
    Calm,
    Fault,
    Servers,
    Site,
    Task,
    any_fault,
    check_nobody_is_left,
    check_whole,
    suffer,
)
from tools.demo import find_report
from tools.demo_clips import export_clips

EXAMPLES = Task(Path(__file__).parents[2] / "examples" / "tiny.jsonl", "tiny", ())


@pytest.fixture(scope="module")
def rendered(server_site: Site) -> str:
    """A run of the batch, whose last row names a picture that is not there."""
    run_id = server_site.start(EXAMPLES, on_bad_rows="skip", failure_limit=1)
    assert server_site.wait(run_id) == "success"
    return run_id


def test_all_good_rows_are_rendered(server_site: Site, rendered: str, tmp_path: Path) -> None:
    report = find_report(server_site.store, rendered)
    assert report is not None
    assert (report["clips_done"], report["clips_failed"], report["clips_flagged"]) == (5, 1, 0)
    assert [clip["stage"] for clip in report["failed"]] == ["plan"]
    assert report["stages_computed"] == 3 * 6 + 2 * 5
    clips = export_clips(server_site.store, report, tmp_path)
    assert all(clip.file.stat().st_size > 10_000 for clip in clips)
    assert len(clips) == 5


def test_second_run_computes_nothing(server_site: Site, rendered: str) -> None:
    run_id = server_site.start(EXAMPLES, on_bad_rows="skip", failure_limit=1)
    assert server_site.wait(run_id) == "success"
    report = find_report(server_site.store, run_id)
    assert report is not None
    assert (report["clips_skipped"], report["clips_failed"], report["stages_computed"]) == (5, 1, 0)


def test_store_and_catalog_agree(server_site: Site, rendered: str) -> None:
    check_whole(server_site)
    check_nobody_is_left(server_site)


def test_no_secret_is_told(server_site: Site, servers: Servers, rendered: str) -> None:
    places = {place: content for place, content in told(server_site, servers)}
    assert len(places) > 100
    assert not [place for place, content in places.items() if any(secret in content for secret in servers.secrets)]


@pytest.mark.parametrize("fault", [any_fault("task", random.Random(SEED), LATE)], ids=str)
def test_batch_survives_a_kill_there_too(server_site: Site, small: Task, calm: Calm, fault: Fault) -> None:
    suffer(server_site, small, calm, fault)


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
