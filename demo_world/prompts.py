"""A batch of held-out prompts, to be rendered and judged: `python -m demo_world.prompts --count 64`."""

from __future__ import annotations

import argparse
import json
import random
import sys

from demo_world.scenes import draw_scene
from demo_world.wordings import write_caption


def held_out_rows(count: int, *, seeds_per_prompt: int, seed: int) -> list[dict[str, str | int]]:
    """Rows of a batch file: `count` prompts that training never saw, in all wordings, each with several clip seeds."""
    rng = random.Random(seed)
    prompts = [write_caption(draw_scene(rng, held_out=True), rng) for _ in range(count)]
    return [
        {"name": f"{index:03d}-{clip_seed}", "prompt": prompt, "seed": clip_seed}
        for index, prompt in enumerate(prompts)
        for clip_seed in range(seeds_per_prompt)
    ]


def main(arguments: list[str] | None = None) -> int:
    """Write the rows to standard output as JSONL."""
    parser = argparse.ArgumentParser(prog="python -m demo_world.prompts", description=__doc__)
    parser.add_argument("--count", type=int, default=64, help="prompts")
    parser.add_argument("--seeds-per-prompt", type=int, default=2, help="clips of each prompt")
    parser.add_argument("--seed", type=int, default=2024, help="of the draw of scenes and wordings")
    chosen = parser.parse_args(arguments)
    rows = held_out_rows(chosen.count, seeds_per_prompt=chosen.seeds_per_prompt, seed=chosen.seed)
    sys.stdout.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
