"""Judge a delivered clip: `python -m demo_world.judge CLIP --expect "a red circle moves ..."`.

Prints what was measured as one JSON object; exit status 0 when everything that the caption says is so.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from demo_world.judge import judge_clip
from demo_world.reading import read_caption
from magi2.errors import Magi2Error


def main(arguments: list[str] | None = None) -> int:
    """0 when the clip is what was asked for, 1 when it is not, 2 when caption or clip cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m demo_world.judge", description=__doc__)
    parser.add_argument("clip", type=Path, help="a delivered mp4")
    parser.add_argument("--expect", required=True, metavar="CAPTION", help="what it should show, in the demo's grammar")
    chosen = parser.parse_args(arguments)
    try:
        verdict = judge_clip(chosen.clip, read_caption(chosen.expect))
    except Magi2Error as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(json.dumps(verdict.as_json(), indent=1) + "\n")
    return 0 if verdict.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
