"""Writing figures of faults to `benchmarks/results/faults.json`, each below its own name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "faults.json"


def record(name: str, values: Mapping[str, Any]) -> None:
    """Replace what stands below a name, and leave the rest as it is."""
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps({**found, name: dict(values)}, indent=1, sort_keys=True) + "\n")
