"""`python -m benchmarks [--out FILE] [--only SECTION ...] [--clips 272p ...] [--no-checks]`: one table of parts.

Sections: `preview` (parts and whole layers of the preview transformer), `refiner` (a layer at the delivery size and a
whole forward), `steps` (denoising steps of half the preview stack), `decoders` (turbo and audio). Kernels are compared
with plain torch first. With `--out` the table as JSON: a list of parts, each with the versions of what ran.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import torch

from benchmarks.installed import measured_set, print_set
from magi2 import platform
from magi2.acceptance.measure import Ceilings, measure_ceilings, release

SECTIONS = ("preview", "refiner", "steps", "decoders")


def main() -> int:
    """Print the table; 1 when a check fails, 0 otherwise, also where there is nothing to measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the results there as JSON")
    parser.add_argument("--only", nargs="+", default=SECTIONS, choices=SECTIONS, help="measure these sections only")
    parser.add_argument("--clips", nargs="+", default=["272p", "540p"], choices=["272p", "540p"])
    parser.add_argument("--no-checks", action="store_true", help="measure without comparing with plain torch first")
    arguments = parser.parse_args()
    accelerator = platform.current()
    if accelerator.name == "cpu":
        print_set(torch.device("cpu"))
        print("no accelerator here: nothing to measure")
        return 0
    platform.disable_tf32()
    device = platform.device(accelerator=accelerator)
    limits = measure_ceilings(device)
    print(limits, flush=True)
    release()
    failed = not arguments.no_checks and not _check(device, arguments.only)
    rows = list(_measure(device, limits, arguments.only, tuple(arguments.clips)))
    print_set(device)
    print(f"{'part':24}{'tokens':>9}{'ms':>10}{'floor ms':>10}{'ratio':>7}")
    for row in rows:
        print(f"{row['part']:24}{row['tokens']:9}{row['ms']:10.3f}{row['floor_ms']:10.3f}{row['ratio']:7.2f}")
    if arguments.out:
        versions = measured_set(device)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps([row | {"versions": versions} for row in rows], indent=1) + "\n")
    return int(failed)


def _check(device: torch.device, sections: tuple[str, ...]) -> bool:
    """Whether every kernel repeats its bits and stays close to plain torch; prints a line for each."""
    from magi2.acceptance.preview_checks import checks
    from magi2.acceptance.refiner_checks import refiner_checks

    made = {"preview": checks, "refiner": refiner_checks}
    passed = True
    for check in chain.from_iterable(made[section](device) for section in sections if section in made):
        print(check, flush=True)
        passed &= check.passed
    release()
    return passed


def _measure(
    device: torch.device, limits: Ceilings, sections: tuple[str, ...], clips: tuple[str, ...]
) -> Iterator[dict[str, object]]:
    from benchmarks import decoders, preview, preview_steps, refiner

    results = preview.run(device, limits, clips) if "preview" in sections else []
    release()
    if "refiner" in sections:
        results += refiner.run(device, limits)
        release()
    if "steps" in sections:
        steps = preview_steps.run(device)
        print(steps, flush=True)
        release()
        layers = {result.part: result for result in reversed(results)}
        if {"sparse_layer", "dense_layer"} <= layers.keys():
            results.append(preview_steps.as_result(steps, layers["sparse_layer"], layers["dense_layer"]))
    if "decoders" in sections:
        for line in decoders.run(device):
            print(line, flush=True)
    yield from (result.as_json() for result in results)


sys.exit(main())
