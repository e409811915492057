"""`python -m magi2.acceptance.child STEP FOLDER`: one step, or one of its ranks, in a process of its own.

FOLDER holds the options; rank 0 writes there what the step has found, after every finding, and how it ended.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from magi2 import platform
from magi2.acceptance.plan import STEPS, Findings, NotRunError, Options, Outcome, Step, Verdict
from magi2.acceptance.site import Site
from magi2.acceptance.work import OPTIONS_FILE, OUTCOME_FILE, UNFINISHED, layout_of, write
from magi2.config.settings import Settings
from magi2.errors import Magi2Error, in_one_line
from magi2.runtime.meeting import meet


def main() -> int:
    """1 when the step failed, so that the other ranks are ended."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s: %(message)s")
    name, folder = sys.argv[1], Path(sys.argv[2])
    (step,) = (step for step in STEPS if step.name == name)
    outcome = run(step, Options.from_json(json.loads((folder / OPTIONS_FILE).read_bytes())), folder)
    return int(outcome.verdict == "failed")


def run(step: Step, options: Options, folder: Path) -> Outcome:
    """The step's outcome. The rank that leads writes it to `folder`, also while it grows; any rank writes a failure."""
    found, started = Findings(), time.monotonic()
    card: str | None = None

    def outcome(verdict: Verdict, reason: str | None = None) -> Outcome:
        seconds = time.monotonic() - started
        return found.outcome(step.name, verdict, seconds, key=options.key, card=card, reason=reason)

    leads = True
    try:
        with _site(step, options, folder) as site:
            leads = site.mesh is None or site.mesh.rank == 0
            card = site.card
            for each in importlib.import_module(f"magi2.acceptance.steps.{step.name}").run(site):
                found.add(each)
                if leads:
                    write(folder / OUTCOME_FILE, outcome("failed", UNFINISHED))
        ended = outcome("passed")
    except NotRunError as error:
        ended = outcome("not run", str(error))
    except Magi2Error as error:
        ended = outcome("failed", str(error))
    except Exception as error:  # whatever a driver or a library raises: told, with its traceback in the log
        traceback.print_exc()
        ended = outcome("failed", f"{type(error).__name__}: {in_one_line(error)}")
    if leads or ended.verdict == "failed":
        write(folder / OUTCOME_FILE, ended)
    return ended


@contextmanager
def _site(step: Step, options: Options, folder: Path) -> Iterator[Site]:
    """The step's surroundings, in which its device is open."""
    settings = Settings.from_environment()
    if step.devices == "none":
        yield Site(options, settings, folder)
        return
    with meet(layout_of(step, options, settings), settings) as team:
        platform.disable_tf32()
        platform.set_deterministic(True)
        yield Site(options, settings, folder, team.mesh)


if __name__ == "__main__":
    sys.exit(main())
