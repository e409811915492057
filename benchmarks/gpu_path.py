"""`python -m benchmarks.gpu_path [--out FILE] [--only STEP ...] [--limit-s 540]`: the product on this accelerator.

Each step runs `magi2 render` as a user does and says what came of it; a step that fails does not keep the others from
running. With `--out` the results and the versions of what ran as JSON, written after every step. 1 when a step failed,
0 otherwise, also where there is no accelerator.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path

from benchmarks.gpu_site import Site, SkippedError, StepError
from benchmarks.gpu_steps import STEPS
from benchmarks.installed import differences, measured_set, pins
from magi2 import platform


def main() -> int:
    """Run the steps, tell of each, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the results there as JSON")
    parser.add_argument("--only", nargs="+", default=list(STEPS), choices=STEPS, help="run these steps only")
    parser.add_argument("--limit-s", type=float, default=540.0, help="no program runs beyond this many seconds of all")
    parser.add_argument("--device", help="another device than the machine's accelerator, to try the steps out")
    arguments = parser.parse_args()
    accelerator = platform.current(arguments.device)
    if accelerator.name == "cpu" and not arguments.device:
        print("no accelerator here: nothing to run")
        return 0
    versions = measured_set(platform.device(accelerator=accelerator))
    steps: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory(prefix="gpu-path-") as folder:
        site = Site(Path(folder), accelerator, time.monotonic() + arguments.limit_s)
        for name in arguments.only:
            steps[name] = _run(name, site)
            _write({"versions": versions, "not_pinned": differences(pins()), "steps": steps}, arguments.out)
    return int(any(step["state"] == "failed" for step in steps.values()))


def _run(name: str, site: Site) -> dict[str, object]:
    started = time.monotonic()
    try:
        found = {"state": "passed", **STEPS[name](site)}
    except SkippedError as reason:
        found = {"state": "skipped", "reason": str(reason)}
    except StepError as error:
        found = {"state": "failed", "reason": str(error)}
    except Exception:  # a fault of a step is told like one of the product
        found = {"state": "failed", "reason": traceback.format_exc()[-4000:]}
    found["seconds"] = round(time.monotonic() - started, 1)
    print(f"{name}: {json.dumps(found, ensure_ascii=False)}", flush=True)
    return found


def _write(results: dict[str, object], out: Path | None) -> None:
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
