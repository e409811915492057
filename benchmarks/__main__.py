"""`python -m benchmarks [--out FILE] [--clips 272p ...] [--no-checks]`: one table of the preview layer's parts.

With `--out` the same as JSON: the parts, the device's measured ceilings and the versions of what ran.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
import triton

from magi2 import platform


def main() -> int:
    """Print the table; 1 when a check fails, 0 otherwise, also where there is nothing to measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the results there as JSON")
    parser.add_argument("--clips", nargs="+", default=["272p", "540p"], choices=["272p", "540p"])
    parser.add_argument("--no-checks", action="store_true", help="measure without comparing with plain torch first")
    arguments = parser.parse_args()
    accelerator = platform.current()
    if accelerator.name == "cpu":
        print("no accelerator here: nothing to measure")
        return 0
    platform.disable_tf32()
    device = platform.device(accelerator=accelerator)
    from benchmarks.preview import checks, run

    failed = False
    if not arguments.no_checks:
        for check in checks(device):
            print(check, flush=True)
            failed |= not check.repeats
    limits, results = run(device, tuple(arguments.clips))
    print(f"copy {limits.bytes_per_s / 1e12:.2f} TB/s, bf16 product {limits.flops_per_s / 1e12:.0f} TFLOP/s")
    print(f"{'part':24}{'tokens':>9}{'ms':>10}{'floor ms':>10}{'ratio':>7}")
    rows = [result.as_json() for result in results]
    for row in rows:
        print(f"{row['part']:24}{row['tokens']:9}{row['ms']:10.3f}{row['floor_ms']:10.3f}{row['ratio']:7.2f}")
    if arguments.out:
        versions = {
            "device": torch.cuda.get_device_name(device),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cudnn": torch.backends.cudnn.version(),
            "flash_attention_3": bool(find_spec("fa3_fwd_interface") or find_spec("flash_attn_interface")),
        }
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps([row | {"versions": versions} for row in rows], indent=1) + "\n")
    return int(failed)


sys.exit(main())
