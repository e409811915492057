"""Render a batch the way a deployment does, on this machine and without GPU: `python -m tools.demo`.

Everything is kept under out/: Airflow's home, the artifact store, the finished clips and one picture of them all. A
second run finds every stage in the store and computes nothing. By default it renders examples/shapes.jsonl with the
weights of examples/demo_checkpoint. Clips whose prompt is in the words of demo_world are measured against
it. With --ui the page stays up until it is interrupted.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from magi2.artifacts.address import open_store
from magi2.artifacts.store import ArtifactStore
from tools.demo_clips import export_clips, judgement, write_sheet
from tools.local_airflow import FINISHED, REPOSITORY, LocalAirflow, is_free

EXAMPLES = REPOSITORY / "examples"
DAG_ID, WATCH_DAG_ID = "magi2_render_batch", "magi2_watch"
TIMEOUT_S = 900.0
UI_PORT = 8080
SHEET = "contact_sheet.png"
STATES = ("success", "running", "failed", "up_for_retry", "upstream_failed")


def main() -> int:
    """Run the demonstration; 0 when its run succeeded. The last line is one JSON object with what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "out", help="folder for everything")
    parser.add_argument("--batch", type=Path, default=EXAMPLES / "shapes.jsonl", help="batch file")
    parser.add_argument("--profile", default="demo", help="profile of rows that name none")
    parser.add_argument("--checkpoint", type=Path, default=EXAMPLES / "demo_checkpoint", help="weights")
    parser.add_argument("--ui", action="store_true", help="keep Airflow's page up afterwards")
    arguments = parser.parse_args()
    out, batch = arguments.out.absolute(), arguments.batch.absolute()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that Airflow is stopped too
    with LocalAirflow(
        out / "airflow",
        environment=settings(out, arguments.checkpoint.absolute()),
        port=UI_PORT if arguments.ui and is_free(UI_PORT) else None,
    ) as airflow:
        say(f"Airflow's page while this runs: {airflow.url} (make ui keeps it up)")
        summary, state = render(airflow, batch, out, profile=arguments.profile)
        print(json.dumps(summary), flush=True)
        if arguments.ui:
            keep(airflow)
    return 0 if state == "success" else 1


def settings(out: Path, checkpoint: Path) -> dict[str, str]:
    """The deployment: store and inbox in `out`, no accelerator. Threads would only get in each other's way here."""
    inbox = out / "inbox"
    inbox.mkdir(parents=True, exist_ok=True)
    folders = {"MAGI2_CKPT_ROOT": checkpoint, "MAGI2_STORE": out / "store", "MAGI2_INBOX": inbox}
    return {"MAGI2_DEVICE": "cpu", "OMP_NUM_THREADS": "1", **{name: str(folder) for name, folder in folders.items()}}


def render(airflow: LocalAirflow, batch: Path, out: Path, *, profile: str) -> tuple[dict[str, Any], str]:
    """Run the batch, tell of its progress and show its finished clips in out/clips; the summary and the run's state."""
    airflow.unpause(DAG_ID)
    started = time.monotonic()
    conf = {"batch": str(batch), "profile": profile, "on_bad_rows": "skip", "failure_limit": 1}
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
    show(store, report, out / "clips")
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


def show(store: ArtifactStore, report: dict[str, Any], folder: Path) -> None:
    """Copy the finished clips to `folder`, with one picture of them all, and say what was measured on them."""
    clips = export_clips(store, report, folder)
    if clips:
        write_sheet(clips, folder / SHEET)
    say(f"{len(clips)} clips in {folder}, all in one picture in {SHEET}")
    for clip in clips:
        if measured := judgement(clip):
            say(f"{clip.name}: {measured}")


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
