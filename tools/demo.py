"""Render examples/demo.jsonl the way a deployment does, with random tiny weights, on this machine and without GPU.

Everything is kept under out/: Airflow's home, the artifact store, the weights, the finished clips. A second run finds
every stage in the store and computes nothing. With --ui the page stays up until it is interrupted.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from local_airflow import FINISHED, REPOSITORY, LocalAirflow, is_free

from magi2.artifacts.address import open_store
from magi2.artifacts.store import ArtifactStore
from magi2.types import StageName

DAG_ID, WATCH_DAG_ID = "magi2_render_batch", "magi2_watch"
TIMEOUT_S = 900.0
UI_PORT = 8080
STATES = ("success", "running", "failed", "up_for_retry", "upstream_failed")


def main() -> int:
    """Run the demonstration; 0 when its run succeeded. The last line is one JSON object with what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "out", help="folder for everything")
    parser.add_argument("--batch", type=Path, default=REPOSITORY / "examples" / "demo.jsonl", help="batch file")
    parser.add_argument("--ui", action="store_true", help="keep Airflow's page up afterwards")
    arguments = parser.parse_args()
    out = arguments.out.absolute()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that Airflow is stopped too
    make_weights(out / "checkpoint")
    with LocalAirflow(
        out / "airflow", environment=settings(out), port=UI_PORT if arguments.ui and is_free(UI_PORT) else None
    ) as airflow:
        say(f"Airflow's page while this runs: {airflow.url} (make ui keeps it up)")
        summary, state = render(airflow, arguments.batch.absolute(), out)
        print(json.dumps(summary), flush=True)
        if arguments.ui:
            keep(airflow)
    return 0 if state == "success" else 1


def settings(out: Path) -> dict[str, str]:
    """The deployment: weights, store and inbox in `out`. More threads than one only get in each other's way here."""
    inbox = out / "inbox"
    inbox.mkdir(parents=True, exist_ok=True)
    folders = {"MAGI2_CKPT_ROOT": out / "checkpoint", "MAGI2_STORE": out / "store", "MAGI2_INBOX": inbox}
    return {"OMP_NUM_THREADS": "1", **{name: str(folder) for name, folder in folders.items()}}


def make_weights(folder: Path) -> None:
    """Random weights in the published layout, unless they are there; they are there whole or not at all."""
    if folder.exists():
        return
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    say("making random tiny weights")
    subprocess.run(
        [sys.executable, "-m", "magi2.cli.main", "checkpoint", "make-tiny", str(partial), "--seed", "1"],
        check=True,
        stdout=sys.stderr,
    )
    partial.rename(folder)


def render(airflow: LocalAirflow, batch: Path, out: Path) -> tuple[dict[str, Any], str]:
    """Run the batch, tell of its progress and copy its finished clips to out/clips; the summary and the run's state."""
    airflow.unpause(DAG_ID)
    started = time.monotonic()
    conf = {"batch": str(batch), "profile": "tiny", "on_bad_rows": "skip", "failure_limit": 1}
    run_id = airflow.trigger(DAG_ID, conf)
    say(f"run {run_id} of {batch}")
    state = follow(airflow, run_id)
    seconds = time.monotonic() - started
    store = open_store(str(out / "store"))
    report = find_report(store, run_id)
    if report is None:
        raise SystemExit(f"run {run_id} ended as {state} without a report; see {airflow.url} and {airflow.home}/logs")
    for clip in report["failed"]:
        say(f"failed: {', '.join(clip['names'])} in {clip['stage']}: {clip['reason']}")
    clips = export(store, report, out / "clips")
    say(f"{len(clips)} clips in {out / 'clips'}")
    names = ("clips_done", "clips_failed", "clips_skipped", "stages_computed", "stages_reused")
    place = out / "store" / "documents" / "batches" / report["batch_id"] / "report.md"
    return {**{name: report[name] for name in names}, "seconds": round(seconds, 1), "report": str(place)}, state


def follow(airflow: LocalAirflow, run_id: str) -> str:
    """Say what the run is doing whenever that changes; its final state."""
    deadline, told = time.monotonic() + TIMEOUT_S, ""
    while (state := airflow.state(DAG_ID, run_id)) not in FINISHED:
        tasks = airflow.tasks(DAG_ID, run_id)
        counts = Counter(task["state"] for task in tasks)
        running = [
            f"{task['task_id']} {task['rendered_map_index'] or ''}".strip() for task in tasks if is_running(task)
        ]
        line = ", ".join([f"{counts[name]} {name}" for name in STATES if counts[name]] + running)
        if line != told:
            told = line
            say(line)
        if time.monotonic() > deadline:
            raise SystemExit(f"run {run_id} takes longer than {TIMEOUT_S:.0f} s; see {airflow.home}/logs")
        time.sleep(1)
    return state


def is_running(task: dict[str, Any]) -> bool:
    """Whether a task instance is at work."""
    return bool(task["state"] == "running")


def find_report(store: ArtifactStore, run_id: str) -> dict[str, Any] | None:
    """The report of the batch that the run rendered."""
    for name in store.list_documents("batches"):
        if name.endswith("/report.json"):
            report: dict[str, Any] = json.loads(store.get_document(name) or b"{}")
            if report.get("run_id") == run_id:
                return report
    return None


def export(store: ArtifactStore, report: dict[str, Any], folder: Path) -> list[Path]:
    """Copies of the finished clips, named by clip id."""
    folder.mkdir(parents=True, exist_ok=True)
    copies = []
    for clip in (*report["done"], *report["flagged"], *report["skipped"]):
        target = folder / f"{clip['clip_id'][:12]}.mp4"
        partial = target.with_suffix(".partial")
        shutil.copyfile(store.fetch(StageName.MUX, clip["key"], "clip.mp4"), partial)
        partial.replace(target)
        copies.append(target)
    return copies


def keep(airflow: LocalAirflow) -> None:
    """Leave Airflow running until Ctrl-C, with a watch over batches that are cancelled there."""
    airflow.unpause(WATCH_DAG_ID)
    say(f"{airflow.url}/plugin/renders shows the clips; stop with Ctrl-C")
    try:
        while all(group.poll() is None for group in airflow.groups.values()):
            time.sleep(1)
    except KeyboardInterrupt:
        say("stopping")


def say(line: str) -> None:
    """Tell a person; stdout is for the summary."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
