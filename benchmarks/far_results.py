"""Writing figures of far stores and long histories to `benchmarks/results/far_stores.json`, each below its name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "far_stores.json"


def record(part: str, name: str, values: Mapping[str, Any]) -> None:
    """Replace what stands below a name of a part, and leave the rest as it is."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known[part] = {**known.get(part, {}), name: dict(values)}
    RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
