"""The golden cases of the prompt enhancement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden"
CASES: list[dict[str, Any]] = json.loads((GOLDEN / "prompt_enhancement/cases.json").read_bytes())


def reply(case: dict[str, Any]) -> str:
    return (GOLDEN / "prompt_enhancement" / f"{case['case']}.json").read_bytes().decode()
