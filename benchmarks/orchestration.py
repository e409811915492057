"""What the orchestration costs: `python -m benchmarks.orchestration [--clips 1000]`.

A batch through the real DAG in a real Airflow (SQLite, LocalExecutor) whose stages only publish a small artifact, then
the same batch again, where every clip is found finished. The goals are 0.5 s a clip and 60 s for 1,000 finished clips.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

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
    """Print one JSON object: seconds of both runs, and of one clip of the first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=1_000)
    parser.add_argument("--parallelism", type=int, default=4)
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
            first, again = (_seconds(airflow, batch) for _ in range(2))
    result = {"clips": arguments.clips, "first_s": first, "per_clip_s": first / arguments.clips, "again_s": again}
    print(json.dumps({name: round(value, 3) for name, value in result.items()}))


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


def _seconds(airflow: LocalAirflow, batch: Path) -> float:
    started = time.monotonic()
    run_id = airflow.trigger(DAG_ID, {"batch": str(batch), "profile": "tiny"})
    while (state := airflow.state(DAG_ID, run_id)) not in FINISHED:
        time.sleep(1)
    if state != "success":
        raise SystemExit(f"run {run_id} ended as {state}, see {airflow.home}")
    return time.monotonic() - started


if __name__ == "__main__":
    main()
