"""How far FP8 moves the demo's latents, step by step: `python -m tools.fp8_latents [--out FILE] [--prompts N]`.

Held-out prompts with two seeds each, 20 steps from the same noise, all computing in bf16: latents of picture and sound
after every step with the routed experts, or all large products, in FP8, against those with bf16 weights. For scale:
bf16 against fp32, and at the end the two seeds of a prompt. On the CPU FP8 is computed the plain way.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from torch import Tensor

from demo_world.measure.wanted import Wanted, wanted_clips, write_batch
from magi2.batches.batch_file import read_batch
from magi2.config.profiles import Profiles
from magi2.config.settings import Settings
from magi2.deployment import Deployment
from magi2.jobs.render import ClipRender
from magi2.models.preview.config import BF16, FP8, FP8_EXPERTS
from magi2.sampling.preview import SamplerState, denoise_preview
from magi2.sampling.schedule import GUIDED
from magi2.sampling.search import cosine, relative_l2
from magi2.stages.preview import PreviewStage, load_conditioning
from magi2.stages.progress import Silent
from magi2.types import StageName
from tools.tiers import AXES, REPOSITORY, versions

FP32 = "fp32"
WAYS = {FP32: ("compute_dtype=float32",), **AXES["weights"].values}
PAIRS = ((FP8_EXPERTS, BF16), (FP8, BF16), (BF16, FP32))

Latents = tuple[Tensor, Tensor]


def main(arguments: list[str] | None = None) -> int:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(prog="python -m tools.fp8_latents", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=REPOSITORY / "examples" / "demo_checkpoint")
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--seed", type=int, default=2024, help="of the draw of prompts")
    parser.add_argument("--out", type=Path, help="write the figures there as JSON")
    chosen = parser.parse_args(arguments)
    wanted = wanted_clips(chosen.prompts, seeds_per_prompt=2, seed=chosen.seed, kinds=["preview"], images=Path())
    with tempfile.TemporaryDirectory() as folder:
        settings = replace(Settings.from_environment(), ckpt_root=chosen.checkpoint.absolute(), store=f"{folder}/store")
        runs = {way: latents_by_step(wanted, overrides, settings, Path(folder)) for way, overrides in WAYS.items()}
        figures = {**summed_up(runs), "clips": len(wanted), "versions": versions(settings)}
    if chosen.out:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    return 0


def latents_by_step(
    wanted: list[Wanted], overrides: tuple[str, ...], settings: Settings, folder: Path
) -> dict[str, list[Latents]]:
    """By clip, the latents after each step."""
    file = folder / "batch.jsonl"
    write_batch(wanted, file)
    batch = read_batch(file, Profiles(settings.configs, "demo", overrides)).require_good()
    work = ClipRender(batch.clips, batch.profiles, Deployment(settings), progress=Silent())
    for name in (StageName.ENHANCE, StageName.ENCODE):
        for result in work.run_stage(name):
            if result.error:
                raise result.error
    (context,) = work.contexts().values()
    stage = PreviewStage(context)
    model, preview = stage.load(), context.book.profile.preview
    found = {}
    for clip in batch.clips:
        (layout,) = stage.layouts(model, load_conditioning(context, clip), (GUIDED,)).values()
        steps: list[Latents] = []

        def keep(state: SamplerState, steps: list[Latents] = steps) -> None:
            steps.append((state.video.cpu(), state.audio.cpu()))

        last = denoise_preview(
            model,
            layout,
            *stage.noise(clip),
            num_steps=preview.steps,
            shift=preview.shift,
            guidance=preview.guidance,
            snapshot_every=1,
            on_snapshot=keep,
        )
        found[clip.names[0]] = [*steps, (last[0].cpu(), last[1].cpu())]
    return found


def summed_up(runs: dict[str, dict[str, list[Latents]]]) -> dict[str, Any]:
    """Means over the clips by step, the worst clip at the end, and the distance between two seeds for scale."""
    rows = [
        {"weights": one, "against": other, "step": step, **_distances(runs[one], runs[other], step)}
        for one, other in PAIRS
        for step in range(len(next(iter(runs[BF16].values()))))
    ]
    exact = runs[BF16]
    seeds = {name: steps for name, steps in exact.items() if name.endswith("-1")}
    firsts = {name: exact[f"{name.removesuffix('-1')}-0"] for name in seeds}
    return {"by_step": rows, "another_seed": _distances(seeds, firsts, -1)}


def _distances(one: dict[str, list[Latents]], other: dict[str, list[Latents]], step: int) -> dict[str, Any]:
    pairs = [(one[name][step], other[name][step]) for name in one]
    found: dict[str, Any] = {}
    for part, name in enumerate(("video", "audio")):
        for measure, function in (("cosine", cosine), ("relative_l2", relative_l2)):
            values = [function(a[part], b[part]) for a, b in pairs]
            worst = max if measure == "relative_l2" else min
            found[f"{name}_{measure}"] = {"mean": round(mean(values), 5), "worst": round(worst(values), 5)}
    return found


if __name__ == "__main__":
    sys.exit(main())
