"""Train the demo checkpoint: `python -m demo_world.training OUT --device cuda`.

Writes OUT in the published layout, part after part, each within its time limit, all together in under 25 minutes on one
NVIDIA H200. A part may also be trained by itself when those that it needs are in OUT: preview and refiner need text.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from demo_world.training.run import PARTS, Options, train_parts


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and train."""
    chosen = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    device = torch.device(chosen.device)
    options = Options(
        device=device,
        seed=chosen.seed,
        seconds=chosen.seconds,
        steps=chosen.steps,
        compiled=device.type == "cuda" and not chosen.no_compile,
        batch_size=chosen.batch_size,
        clip_count=chosen.clips,
        latent_frames=chosen.latent_frames,
    )
    train_parts(chosen.out, chosen.parts, options)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m demo_world.training",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = Options(torch.device("cpu"))
    parser.add_argument("out", type=Path, help="folder of the checkpoint")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="in this order")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--seconds", type=_positive(float), help="limit of each part; by default its own")
    parser.add_argument("--steps", type=_positive(int), help="limit of each part; by default its own")
    parser.add_argument("--no-compile", action="store_true", help="on CUDA: run the preview's layers as they are")
    preview = parser.add_argument_group("preview alone")
    preview.add_argument("--batch-size", type=_positive(int), default=defaults.batch_size, help="clips")
    preview.add_argument(
        "--clips", type=_positive(int), default=defaults.clip_count, help="different ones to learn from"
    )
    preview.add_argument(
        "--latent-frames",
        type=_positive(int),
        default=defaults.latent_frames,
        help="length of a clip; 32 are ten seconds",
    )
    return parser


def _positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = kind(text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    return parse


if __name__ == "__main__":
    sys.exit(main())
