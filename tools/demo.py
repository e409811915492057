"""Render a batch the way a deployment does, on this machine: `python -m tools.demo`.

It uses an accelerator where there is one; DEVICE=cpu in the environment, or --device cpu, forces the CPU.

Everything is kept under out/: Airflow's home, the artifact store, the finished clips and one picture of them all. A
second run finds every stage in the store and computes nothing. By default it renders examples/shapes.jsonl with the
weights of examples/demo_checkpoint. Clips whose prompt is in the words of demo_world are measured against
it. With --ui the page stays up until it is interrupted.

It takes as long as it takes. Whichever way it ends, what is finished is delivered, and the same command goes on from
there; a second Ctrl-C ends it at once.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from magi2.artifacts.address import open_store
from magi2.artifacts.store import ArtifactStore
from magi2.batches.documents import batch_ids, load_batch, load_report, report_text_name
from magi2.batches.schema import BatchDocument
from magi2.cli.console import errors
from magi2.config.settings import Settings
from magi2.errors import Magi2Error
from tools.demo_clips import DeliveredClip, deliver_finished, judgement, write_sheet
from tools.demo_progress import BatchReader, LiveLine, follow
from tools.local_airflow import COMPONENTS, REPOSITORY, TRIGGERER, LocalAirflow, is_free

EXAMPLES = REPOSITORY / "examples"
DAG_ID, WATCH_DAG_ID = "magi2_render_batch", "magi2_watch"
UI_PORT = 8080
TARGET, CLIP_NAME = "clips", "{name}.mp4"
SHEET = "contact_sheet.png"
SUMMARY = ("clips_done", "clips_reused", "clips_failed", "stages_computed", "stages_reused", "seconds")


class Interrupted(KeyboardInterrupt):
    """Somebody or something asked this process to end, by the signal of `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def main() -> int:
    """Run the demonstration; 0 when its run succeeded. stdout has the numbers of a run that ended, as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "out", help="folder for everything")
    parser.add_argument("--batch", type=Path, default=EXAMPLES / "shapes.jsonl", help="batch file")
    parser.add_argument("--profile", default="demo", help="profile of rows that name none")
    parser.add_argument("--checkpoint", type=Path, default=EXAMPLES / "demo_checkpoint", help="weights")
    parser.add_argument("--device", default=os.environ.get("DEVICE"), help="cuda, musa or cpu; else what is there")
    parser.add_argument("--ui", action="store_true", help="keep Airflow's page up afterwards")
    arguments = parser.parse_args()
    out = arguments.out.absolute()
    batch = arguments.batch.absolute()
    environment = deployment(out, arguments.checkpoint.absolute(), batch.resolve().parent, arguments.device)
    airflow = LocalAirflow(
        out / "airflow",
        environment=environment,
        port=UI_PORT if arguments.ui and is_free(UI_PORT) else None,
        # Of a demonstration that was interrupted; this one goes on from its store.
        left_runs=lambda run: run["dag_id"] == DAG_ID and (run["conf"] or {}).get("batch") == str(batch),
        components=(*COMPONENTS, TRIGGERER) if arguments.ui else COMPONENTS,
    )
    demonstration = Demonstration(
        airflow, Settings.from_environment(environment), batch, arguments.profile, out / "clips"
    )
    hear_signals()
    return demonstration.run(stays_up=arguments.ui, again=command_line(sys.argv[1:]))


def deployment(out: Path, checkpoint: Path, batches: Path, device: str | None) -> dict[str, str]:
    """The deployment: store, inbox and delivered clips in `out`, and `device`, by default what the machine has.

    The clips are small: one accelerator has them sooner than several, and threads would get in each other's way.
    """
    inbox, clips = out / "inbox", out / "clips"
    for folder in (inbox, clips):
        folder.mkdir(parents=True, exist_ok=True)
    inputs = {"MAGI2_INBOX": inbox, "MAGI2_INPUT_ROOTS": batches}
    folders = {"MAGI2_CKPT_ROOT": checkpoint, "MAGI2_STORE": out / "store", **inputs}
    targets = {TARGET: str(clips)}
    chosen = {"MAGI2_DEVICE": device} if device else {}
    return {
        **chosen,
        "MAGI2_LAYOUT": "sp1.cfg1.ep1",
        "MAGI2_DELIVERY_TARGETS": json.dumps(targets),
        "OMP_NUM_THREADS": "1",
        **{name: str(folder) for name, folder in folders.items()},
    }


def command_line(arguments: Sequence[str]) -> str:
    """What a person types to run this again with the same arguments."""
    short = {(): "make demo", ("--ui",): "make ui"}
    return short.get(tuple(arguments)) or shlex.join(["python", "-m", "tools.demo", *arguments])


def hear_signals() -> None:
    """Let Ctrl-C and SIGTERM end what runs in good order, and a second one end this process at once.

    What it has started is then ended by its guards.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        raise Interrupted(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)


@dataclass
class Demonstration:
    """A batch on its way through Airflow to files in `folder`."""

    airflow: LocalAirflow
    settings: Settings
    batch: Path
    profile: str
    folder: Path
    run_id: str | None = field(default=None, init=False)
    is_delivered: bool = field(default=False, init=False)

    def run(self, *, stays_up: bool, again: str) -> int:
        """Render and deliver; the exit code. Whatever happens, what is finished is delivered and `again` is told."""
        code = 1
        say("starting Airflow: half a minute, on a busy machine several")
        try:
            with self.airflow:
                code = self._work(stays_up)
        except Interrupted as interruption:
            code = 128 + interruption.number
        except (RuntimeError, OSError, Magi2Error) as error:
            say(f"{error}\nlogs: {self.airflow.home}/logs")
            code = 1
        finally:
            try:
                self.deliver()
            finally:
                say(f"the same command {'finds all of it' if code == 0 else 'goes on from'} here: {again}")
        return code

    def _work(self, stays_up: bool) -> int:
        """Everything that needs Airflow; the exit code."""
        try:
            code = 0 if self.render() == "success" else 1
            self.deliver()
            if stays_up:
                keep(self.airflow)
            return code
        except Interrupted as interruption:
            say(f"{interruption}: stops Airflow, then delivers what is finished; a second one ends this at once")
            raise

    def render(self) -> str:
        """Run the batch and tell of its progress; the run's final state."""
        say(f"Airflow's page while this runs: {self.airflow.url} (make ui keeps it up)")
        self.airflow.unpause(DAG_ID)
        limits = {"on_bad_rows": "skip", "failure_limit": 1, "on_limit": "continue"}
        conf = {"batch": str(self.batch), "profile": self.profile, **limits}
        conf |= {"delivery_target": TARGET, "delivery_name": CLIP_NAME}
        self.run_id = self.airflow.trigger(DAG_ID, conf)
        say(f"run {self.run_id} of {self.batch}")
        started = time.monotonic()
        with LiveLine(errors) as line:
            state = follow(self.airflow, DAG_ID, self.run_id, BatchReader(self.settings, DAG_ID, self.run_id), line)
        say(f"the run ended as {state} after {time.monotonic() - started:.1f} s")
        return state

    def deliver(self) -> None:
        """Deliver what the run has not, once, and say what is in the clips and why others are not there."""
        if self.is_delivered or self.run_id is None:
            return
        self.is_delivered = True
        store = open_store(self.settings.store)
        batch = find_batch(store, self.run_id)
        if batch is None:
            say("no clip was planned yet")
            return
        report = load_report(store, batch.batch_id)
        if report:
            for clip in report.failed:
                say(f"failed: {', '.join(clip.names)} in {clip.stage}: {clip.reason}")
        show(deliver_finished(store, batch, self.settings, self.folder), self.folder)
        if report:
            place = f"{self.settings.store}/documents/{report_text_name(batch.batch_id)}"
            summary = {name: report.counts[name] for name in SUMMARY}
            print(json.dumps({**summary, "report": place}), flush=True)


def find_batch(store: ArtifactStore, run_id: str) -> BatchDocument | None:
    """The batch that the run planned, if it is there."""
    batches = (load_batch(store, batch_id) for batch_id in batch_ids(store))
    return next((batch for batch in batches if batch.run_id == run_id), None)


def show(clips: Sequence[DeliveredClip], folder: Path) -> None:
    """Put one picture of all clips beside them, and say what was measured on each."""
    if clips:
        write_sheet(clips, folder / SHEET)
    say(f"{len(clips)} clips in {folder}, all in one picture in {SHEET}" if clips else "no clip is finished yet")
    for clip in clips:
        if measured := judgement(clip):
            say(f"{clip.name}: {measured}")


def keep(airflow: LocalAirflow) -> None:
    """Leave Airflow running until Ctrl-C, with a watch over batches that are cancelled there."""
    airflow.unpause(WATCH_DAG_ID)
    say(f"{airflow.url}/plugin/renders shows the clips; stop with Ctrl-C")
    try:
        while True:
            airflow.require_alive()
            time.sleep(1)
    except Interrupted:
        say("stopping")


def say(line: str) -> None:
    """Tell a person; stdout is for the summary."""
    errors.print(line)


if __name__ == "__main__":
    sys.exit(main())
