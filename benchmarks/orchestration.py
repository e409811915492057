"""What the orchestration costs: `python -m benchmarks.orchestration [--clips 1000] [--record NAME]`.

A batch through the real DAG in a real Airflow (SQLite, LocalExecutor) whose stages only publish a small artifact, then
the same batch again, where every clip is found finished. The goals are 0.4 s a clip and 7 s for 1,000 finished clips.
CPU-seconds are those of all of Airflow's processes and of the tasks, which say more on a machine that has other work.
With `--record` the figures are kept below `orchestration` of `benchmarks/results/far_stores.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.far_results import record
from magi2.checkpoints.tiny import make_tiny
from magi2.config.load import load_profile
from magi2.config.settings import Settings
from tools.local_airflow import FINISHED, LocalAirflow

REPOSITORY = Path(__file__).resolve().parents[1]
DAG_ID = "magi2_render_batch"
STUB = (
    "from magi2_airflow.base import StageOperator\n\nStageOperator.worker_module = 'benchmarks.orchestration_worker'\n"
)


def main() -> None:
    """Print one JSON object: seconds on the clock and of CPUs of both runs, and of one clip of the first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=1_000)
    parser.add_argument("--parallelism", type=int, default=4)
    parser.add_argument("--record", metavar="NAME", help="what to call these figures in the results")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_tiny(folder / "checkpoint", load_profile("tiny", Settings().configs).architectures, seed=1)
        rows = [json.dumps({"prompt": f"a heron takes off, take {number}"}) for number in range(arguments.clips)]
        batch = folder / "batches" / "batch.jsonl"
        batch.parent.mkdir()
        batch.write_text("\n".join(rows))
        with _airflow(folder, arguments.parallelism) as airflow:
            airflow.unpause(DAG_ID)
            (first, first_cpu), (again, again_cpu) = (_seconds(airflow, batch) for _ in range(2))
    times = {"first_s": first, "per_clip_s": first / arguments.clips, "again_s": again}
    times |= {"first_cpu_s": first_cpu, "per_clip_cpu_s": first_cpu / arguments.clips, "again_cpu_s": again_cpu}
    result = {"clips": arguments.clips, "load": os.getloadavg()[1], **times}
    result = {name: round(value, 3) for name, value in result.items()}
    if arguments.record:
        command = f"python -m benchmarks.orchestration --clips {arguments.clips} --parallelism {arguments.parallelism}"
        record("orchestration", arguments.record, {"command": command, **result})
    print(json.dumps(result))


def _airflow(folder: Path, parallelism: int) -> LocalAirflow:
    dags = folder / "dags"
    dags.mkdir()
    wiring = (REPOSITORY / "dags" / f"{DAG_ID}.py").read_text()
    # The wiring finds the profiles beside itself, and __future__ must come first.
    (folder / "configs").symlink_to(REPOSITORY / "configs")
    marker = "from __future__ import annotations\n"
    (dags / f"{DAG_ID}.py").write_text(wiring.replace(marker, marker + STUB, 1))
    environment = {
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "PYTHONPATH": str(REPOSITORY),
        "MAGI2_CKPT_ROOT": str(folder / "checkpoint"),
        "MAGI2_STORE": str(folder / "store"),
        "MAGI2_INPUT_ROOTS": str(folder / "batches"),
    }
    return LocalAirflow(folder / "airflow", environment=environment, parallelism=parallelism)


def _seconds(airflow: LocalAirflow, batch: Path) -> tuple[float, float]:
    """How long a run took, and the CPU-seconds of everything meanwhile."""
    started, used = time.monotonic(), _cpu_s()
    run_id = airflow.trigger(DAG_ID, {"batch": str(batch), "profile": "tiny"})
    while (state := airflow.state(DAG_ID, run_id)) not in FINISHED:
        time.sleep(1)
    if state != "success":
        raise SystemExit(f"run {run_id} ended as {state}, see {airflow.home}")
    return time.monotonic() - started, _cpu_s() - used


def _cpu_s() -> float:
    """What all processes below this one have used so far, those included that have ended."""
    used: dict[int, tuple[int, int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            used[int(stat.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))  # parent; own and children's
    ours = {os.getpid()}
    while below := {each for each, (parent, _) in used.items() if parent in ours} - ours:
        ours |= below
    return sum(used[each][1] for each in ours - {os.getpid()}) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
