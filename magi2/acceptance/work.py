"""Between the process that runs a step and the one that waits for it: the files of its folder, and its ranks."""

from __future__ import annotations

import json
from pathlib import Path

from magi2.acceptance.plan import Options, Outcome, Step
from magi2.config.settings import Settings
from magi2.files import partial_file
from magi2.parallel.layout import ONE_RANK, ParallelLayout
from magi2.stages.layouts import stage_layout
from magi2.types import StageName

OPTIONS_FILE, OUTCOME_FILE = "options.json", "outcome.json"
UNFINISHED = "it did not come to its end"


def write(path: Path, outcome: Outcome) -> None:
    """Put an outcome in place of what was there, as a whole. Raises InfrastructureError."""
    with partial_file(path) as partial:
        partial.write_text(json.dumps(outcome.to_json()))


def read(path: Path) -> Outcome | None:
    """The outcome in a file, None where there is none that can be read."""
    try:
        return Outcome.from_json(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def layout_of(step: Step, options: Options, settings: Settings) -> ParallelLayout:
    """How many ranks a step has. Raises ConfigError for a layout that is none."""
    if step.devices != "layout":
        return ONE_RANK
    return stage_layout(StageName.PREVIEW, options.layout, settings)
