"""`python -m benchmarks.mutations [--count 10000] [--seed 1] [--out FILE]`: damage every kind of stored file.

Each mutation changes the bytes of one file of a small store, or exchanges two files, and then asks the product's own
readers. One that is read as if nothing had happened is printed; the exit code is 1 then. Last come forgeries that
rewrite the digests too, which nothing notices. With `--out` the counts go into the file's object `mutations`.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.mutations.subjects import Sample
from benchmarks.mutations.trial import Trial


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the counts, or write them; 1 when a mutation was accepted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="the file of results whose object `mutations` is replaced")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)  # readers name every damaged file
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Sample(Path(folder)), options.seed)
        for _ in range(options.count):
            trial.mutate()
        forged = trial.forge(100)
    counts = {
        "command": f"python -m benchmarks.mutations --count {options.count} --seed {options.seed}",
        **trial.counts(),
        "forged_with_digests": forged,
        "cpu_seconds": round(time.process_time() - began),
    }
    for accepted in trial.accepted:
        print(f"accepted unseen: {accepted}")
    if options.out:
        _enter(options.out, counts)
    print(json.dumps(counts, indent=1))
    return 1 if trial.accepted else 0


def _enter(path: Path, counts: dict[str, Any]) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, "mutations": counts}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
