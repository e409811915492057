"""Pause, resume, cancel, budget and the watch in Airflow itself, by `dag.test` with stages that need no models."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from magi2.artifacts.local import LocalStore
from magi2.catalog import Action, BatchRecord, BatchState, Catalog, open_catalog
from magi2.catalog.engine import FILE_NAME
from tests.batch_counts import counts_of, state_of
from tests.random_weights import NOISE_IS_GOOD
from tools.local_airflow import LocalAirflow

SCRIPT = Path(__file__).with_name("asked_runs.py")


@dataclass
class Runs:
    """How the runs ended, what they logged, and the catalog after them."""

    states: list[dict[str, Any]]
    output: str
    catalog: Catalog
    store: LocalStore

    def batch(self, name: str) -> BatchRecord:
        return next(batch for batch in self.catalog.batches.search().rows if batch.name == name)

    def report(self, name: str) -> dict[str, Any]:
        content = self.store.get_document(f"batches/{self.batch(name).batch_id}/report.json")
        return json.loads(content or b"{}")  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path, airflow_template: Path) -> Runs:
    folder = tmp_path_factory.mktemp("asked")
    environment = {
        **NOISE_IS_GOOD,
        "MAGI2_CKPT_ROOT": str(tiny_checkpoint),
        "MAGI2_STORE": str(folder / "store"),
        "MAGI2_INPUT_ROOTS": str(folder / "batches"),
        "MAGI2_PRICE_PER_ACCELERATOR_HOUR": "3600",
        "MAGI2_CURRENCY": "EUR",
    }
    airflow = LocalAirflow(folder / "airflow", environment=environment, template=airflow_template)
    airflow.prepare()
    rows = {
        "paused": [("pause after encode", "tiny-preview"), ("and then too dear", "tiny")],
        "cancelled": [("cancel after enhance", "tiny-preview"), ("never begun", "tiny-preview")],
    }
    files = []
    (folder / "batches").mkdir()
    for name, prompts in rows.items():
        files.append(str(folder / "batches" / f"{name}.jsonl"))
        lines = [json.dumps({"prompt": prompt, "profile": profile, "seed": 1}) for prompt, profile in prompts]
        Path(files[-1]).write_text("\n".join(lines))
    command = [sys.executable, str(SCRIPT), *files]
    done = subprocess.run(command, env=airflow.environment, capture_output=True, text=True, timeout=900)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-5000:]
    states = [json.loads(line.split(" ", 2)[2]) for line in done.stdout.splitlines() if line.startswith("state ")]
    catalog = open_catalog(f"sqlite:///{folder}/store/{FILE_NAME}")
    return Runs(states, output, catalog, LocalStore(folder / "store"))


def test_paused_batch_waits_without_failing_and_goes_on_when_resumed(runs: Runs) -> None:
    states = runs.states[0]
    assert states["reschedules"] > 0
    assert (states["run"], states["report/-1"]) == ("success", "success")
    actions = runs.catalog.control.actions(runs.batch("paused").batch_id).rows
    assert [(entry.action, entry.by.name) for entry in actions] == [(Action.RESUME, "ann"), (Action.PAUSE, "ann")]
    assert runs.batch("paused").priority == 4


def test_shard_that_begins_after_the_budget_is_spent_is_skipped_and_fails_nothing(runs: Runs) -> None:
    for stage in ("preview", "mux"):  # whichever shard's task asked first
        assert {runs.states[0][f"shard.{stage}/{shard}"] for shard in (0, 1)} == {"success", "skipped"}
    report = runs.report("paused")
    assert (report["clips_done"], report["clips_over_budget"], report["clips_failed"]) == (1, 1, 0)
    assert report["cost"] in (3.0, 4.0, 5.0)  # by which shard was made, and whether the other was encoded before
    assert (report["budget"], report["currency"]) == (2.5, "EUR")
    (clip,) = report["over_budget"]
    assert (clip["stage"] in ("encode", "preview"), clip["error_code"]) == (True, "budget")
    paused = runs.batch("paused").batch_id
    assert state_of(runs.catalog, paused) is BatchState.DONE
    clips = counts_of(runs.catalog, paused).clips
    assert (clips.done, clips.skipped) == (1, 1)


def test_cancelled_batch_ends_cancelled_in_the_catalog_and_the_report(runs: Runs) -> None:
    states = runs.states[1]
    assert (states["run"], states["shard.encode/0"], states["report/-1"]) == ("failed", "skipped", "failed")
    cancelled = runs.batch("cancelled").batch_id
    assert state_of(runs.catalog, cancelled) is BatchState.CANCELLED
    assert counts_of(runs.catalog, cancelled).clips.cancelled == 2
    report = runs.report("cancelled")
    assert (report["clips_cancelled"], report["clips_failed"]) == (2, 0)


def test_batch_whose_run_ended_without_a_word_does_not_run_for_ever(runs: Runs) -> None:
    assert runs.states[2]["run"] == "success"
    for batch_id, run_state in (("ended", "failed"), ("deleted", "deleted")):
        batch = runs.catalog.batches.get(batch_id)
        assert batch is not None
        assert batch.state is BatchState.CANCELLED
        (entry,) = runs.catalog.control.actions(batch_id).rows
        assert (entry.action, entry.by.name, entry.arguments["run_state"]) == (Action.CANCEL, "Airflow", run_state)


def test_people_are_told_of_ends_and_of_a_full_disk(runs: Runs) -> None:
    for text in (
        "has ended: 1 done, 1 skipped for lack of budget",
        "has ended: 2 cancelled",
        "% of the disk",
    ):
        assert text in runs.output
