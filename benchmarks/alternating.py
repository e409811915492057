"""The same sections from two checkouts in turn, each in a process of its own, so that both see the card as it is."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Rows = list[dict[str, Any]]


def measure_both(old: Path, options: Sequence[str], rounds: int) -> tuple[Rows, Rows]:
    """The parts of the other checkout and of this one, each the median of so many runs of `python -m benchmarks`."""
    runs: dict[Path, list[Rows]] = {old.resolve(): [], ROOT: []}
    for number in range(rounds):
        for tree, found in runs.items():
            print(f"round {number + 1} of {rounds}: {tree.name}", flush=True)
            found.append(_measured_by(tree, options))
    return median(runs[old.resolve()]), median(runs[ROOT])


def median(runs: Sequence[Rows]) -> Rows:
    """Each part of the first run with the median of all runs; of its distance from the floor, where it has one."""
    parts = []
    for row in runs[0]:
        same = [each for run in runs for each in run if (each["part"], each["tokens"]) == (row["part"], row["tokens"])]
        ms = statistics.median(each["ms"] for each in same)
        floor = row["floor_ms"]
        if floor:
            distance = statistics.median(each["ms"] / each["floor_ms"] for each in same)
            floor = ms / distance
            row = row | {"ratio": round(distance, 3)}
        parts.append(row | {"ms": round(ms, 3), "floor_ms": round(floor, 4), "runs": len(same)})
    return parts


def _measured_by(tree: Path, options: Sequence[str]) -> Rows:
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and Path(path) != ROOT]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tree), *others])}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "parts.json"
        command = [sys.executable, "-m", "benchmarks", "--no-checks", *options, "--out", str(file)]
        subprocess.run(command, cwd=tree, env=environment, check=True)
        content = json.loads(file.read_text())
    rows: Rows = content if isinstance(content, list) else content["parts"]
    return rows
