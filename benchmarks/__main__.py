"""`python -m benchmarks [--out FILE] [--only SECTION ...] [--clips 272p ...] [--no-checks] [--tree OLD]`: one table.

Sections: `preview` (parts and whole layers of the preview transformer), `refiner` (a layer at the delivery size and a
whole forward), `steps` (denoising steps of half the preview stack), `decoders` (turbo and audio, and a clip with the
lossless file). Kernels are compared with plain torch first. With `--tree` the same sections run from another checkout
and from this one in turn, and each part is the median of its runs. With `--out` everything as one JSON object: `parts`,
`old_parts` of the other checkout, `versions` of what ran, and the card's `ceilings`. `python -m benchmarks.slower` says
what lost.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from benchmarks.alternating import measure_both
from benchmarks.installed import measured_set, print_set
from benchmarks.slower import by_part, losses
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
    parser.add_argument("--tree", type=Path, help="measure this other checkout, too, in turn")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each checkout (3)")
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
    found: dict[str, Any] = {"ceilings": asdict(limits), "versions": measured_set(device)}
    if arguments.tree:
        options = ["--only", *arguments.only, "--clips", *arguments.clips]
        found["old_parts"], found["parts"] = measure_both(arguments.tree, options, arguments.rounds)
    else:
        found["parts"] = list(_measure(device, limits, arguments.only, tuple(arguments.clips)))
    print_set(device)
    _print(found)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    return int(failed)


def _print(found: dict[str, Any]) -> None:
    old = by_part(found.get("old_parts", []))
    print(f"{'part':24}{'tokens':>9}{'ms':>10}{'floor ms':>10}{'ratio':>7}{'  old ms' if old else ''}")
    for row in found["parts"]:
        ratio = f"{row['ratio']:7.2f}" if row["ratio"] else f"{'':7}"
        before = old.get((row["part"], row["tokens"]))
        last = f"{before['ms']:8.3f}" if before else ""
        print(f"{row['part']:24}{row['tokens']:9}{row['ms']:10.3f}{row['floor_ms']:10.3f}{ratio}{last}")
    for line in losses(old, by_part(found["parts"])):
        print(f"slower: {line}")


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
        results += decoders.run(device)
    yield from (result.as_json() for result in results)


sys.exit(main())
