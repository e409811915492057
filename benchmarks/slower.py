"""`python -m benchmarks.slower OLD NEW`: what lost more than 3 % between two files of `python -m benchmarks --out`.

One file alone, as `--tree` writes it, is compared with the other tree's parts in it. Parts are compared by how far they
are from the floor of their own run, which takes the card out; by milliseconds where they have none. 1 where something
lost, or is in the old file alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

MOST_LOST = 0.03
Part = tuple[str, int]
"""Its name, and the tokens that it was measured with."""
Rows = Mapping[Part, Mapping[str, Any]]


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path, nargs="?")
    arguments = parser.parse_args()
    old = rows_of(arguments.old, "parts" if arguments.new else "old_parts")
    found = list(losses(old, rows_of(arguments.new or arguments.old)))
    for line in found:
        print(line)
    return 1 if found else 0


def rows_of(path: Path, name: str = "parts") -> Rows:
    """The parts of a file, which older versions wrote as a list and nothing else."""
    content = json.loads(path.read_text())
    return by_part(content if isinstance(content, list) else content[name])


def by_part(rows: Sequence[Mapping[str, Any]]) -> Rows:
    """Parts by what tells one from another."""
    return {(row["part"], row["tokens"]): row for row in rows}


def losses(old: Rows, new: Rows) -> Iterator[str]:
    """A line for every part that lost more than `MOST_LOST`, or is not measured any more."""
    for part, before in old.items():
        name = f"{part[0]} at {part[1]} tokens" if part[1] else part[0]
        after = new.get(part)
        if after is None:
            yield f"{name}: not measured any more"
            continue
        one, other = _cost(before), _cost(after)
        if other > one * (1 + MOST_LOST):
            measure = "of its floor" if before["floor_ms"] and after["floor_ms"] else "ms"
            yield f"{name}: {one:.3f} to {other:.3f} {measure}, {other / one - 1:+.1%}"


def _cost(row: Mapping[str, Any]) -> float:
    return float(row["ms"] / row["floor_ms"] if row["floor_ms"] else row["ms"])


if __name__ == "__main__":
    sys.exit(main())
