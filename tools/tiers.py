"""Judge the demo's clips by tier, or by the format of their weights: `python -m tools.tiers --checkpoint FOLDER`.

Every prompt is rendered under lossless, high and draft, at 20 steps and at 100 with the published guidance, and judged;
latents and frames are compared with those of lossless, and lossless with that of the prompt's other seed. With
`--by weights` it is bf16, FP8 experts and FP8 instead, all computing in bf16, and the first of these in the place of
lossless. A line is written after each clip, and what has one is not made again, so that an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any, get_args

import torch

from demo_world.judge.summary import MEASURES
from demo_world.measure.judged import kept_verdict
from demo_world.measure.wanted import KINDS, PROFILES, Kind, Wanted, wanted_clips, write_batch
from magi2.artifacts.store import ArtifactStore
from magi2.batches.batch_file import read_batch
from magi2.config.load import load_profile
from magi2.config.profiles import Profiles
from magi2.config.settings import Settings
from magi2.deployment import Deployment
from magi2.errors import Magi2Error
from magi2.jobs.render import ClipRender
from magi2.kernels.installed import installed
from magi2.media.ffmpeg import find_ffmpeg
from magi2.models.preview.config import Weights
from magi2.sampling.schedule import GUIDED
from magi2.stages.likeness import clip_likeness
from magi2.stages.prepare import open_device
from magi2.stages.progress import Silent

REPOSITORY = Path(__file__).resolve().parents[1]
TIERS = ("lossless", "high", "draft")


@dataclass(frozen=True)
class Axis:
    """What clips are compared by: its name, that of the rows of all clips, and what is set for each of its values. The
    first is what others are held against.
    """

    name: str
    rows: str
    values: Mapping[str, tuple[str, ...]]

    @property
    def reference(self) -> str:
        return next(iter(self.values))

    @property
    def last(self) -> str:
        return tuple(self.values)[-1]


AXES = {
    axis.name: axis
    for axis in (
        Axis("tier", "tiers", {tier: (f"preview.quality={tier}",) for tier in TIERS}),
        Axis(
            "weights",
            "formats",
            {format_: (f"compute.weights={format_}", "compute_dtype=bfloat16") for format_ in get_args(Weights)},
        ),
    )
}
STEPS = {20: (), 100: ("preview.guidance.video_txt_guidance_scale=5", "preview.guidance.audio_txt_guidance_scale=7")}
"""Numbers of steps, and what else is set for them: 20 keep the demo's guidance of 2."""
PREVIEW_GPU_S, REST_GPU_S = 774.0, 159.0
"""GPU-seconds of a 1080p clip on an H200 by measured layer times: a preview of guided steps alone, and the rest."""
SEEDS = 2
"""Clips of each prompt, which are compared with each other for scale."""
PROMPTS_AT_ONCE = 2
"""Prompts that a process renders with one load of the weights."""


@dataclass(frozen=True)
class Part:
    """A few clips of one kind at one number of steps, under every value of an axis."""

    axis: Axis
    steps: int
    wanted: tuple[Wanted, ...]


@dataclass(frozen=True)
class Place:
    """Where a run keeps what it makes: store and batch files, and the line of each clip."""

    settings: Settings
    folder: Path

    @property
    def lines(self) -> Path:
        return self.folder / "clips.jsonl"

    def measured(self) -> list[dict[str, Any]]:
        """What was written, without a last line that was cut off."""
        if not self.lines.exists():
            return []
        whole = self.lines.read_text(encoding="utf-8").rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def write(self, line: dict[str, Any]) -> None:
        """One write of one line, so that processes do not part each other's."""
        handle = os.open(self.lines, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, (json.dumps(line) + "\n").encode())
        finally:
            os.close(handle)


def main(arguments: list[str] | None = None) -> int:
    """Measure what is missing, sum up all that is there. Status 1 when a clip failed."""
    chosen = _parser().parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"  # before any process starts
    folder = chosen.work.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    settings = replace(Settings.from_environment(), ckpt_root=chosen.checkpoint.absolute(), store=str(folder / "store"))
    place = Place(settings, folder)
    axis = AXES[chosen.by]
    axis = replace(axis, values={value: axis.values[value] for value in chosen.values or axis.values})
    done = {(line["steps"], line["name"]) for line in place.measured() if line[axis.name] == axis.last}
    parts = [part for part in _parts(chosen, axis, folder / "images") if not _names(part) <= done]
    failed = _run(parts, place, chosen.processes, chosen.limit_s)
    figures = (
        _beside(chosen)
        | summed_up(place.measured(), axis)
        | {
            "clips_of_each_kind": chosen.clips,
            "versions": versions(settings),
        }
    )
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(figures[axis.rows], indent=1) + "\n")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.tiers", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=REPOSITORY / "examples" / "demo_checkpoint")
    parser.add_argument("--by", choices=AXES, default="tier", help="what clips are compared by")
    parser.add_argument("--values", nargs="+", help="of that; all unless given, and the first is held against")
    parser.add_argument("--clips", type=int, default=32, help=f"of each kind and number of steps, {SEEDS} of a prompt")
    parser.add_argument("--seed", type=int, default=2024, help="of the draw of prompts")
    parser.add_argument("--steps", type=int, nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin nothing new after so many seconds")
    parser.add_argument("--search", type=Path, nargs="*", default=[], help="reports of magi2 schedule find, for --out")
    parser.add_argument("--one-branch", type=Path, help="what benchmarks.one_branch wrote, for --out")
    parser.add_argument("--work", type=Path, default=REPOSITORY / "out" / "tiers")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "benchmarks" / "results" / "tiers.json")
    return parser


def versions(settings: Settings) -> dict[str, str]:
    """What the clips were made by."""
    device = open_device(settings)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"device": name, **installed(), "ffmpeg": find_ffmpeg(settings.ffmpeg).version}


def _beside(chosen: argparse.Namespace) -> dict[str, Any]:
    """What other commands found of the same schedules, without the trials of a search."""
    searches = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in chosen.search}
    for report in searches.values():
        for found in report["found"]:
            del found["trials"]
    layers = json.loads(chosen.one_branch.read_text(encoding="utf-8")) if chosen.one_branch else None
    return {"search": searches} | (
        {"one_branch": layers, "gpu_seconds": gpu_seconds(layers["ratio"])} if layers else {}
    )


def gpu_seconds(unguided: float) -> dict[str, float]:
    """Of a 1080p clip by tier, when a step without guidance takes this share of a guided one."""
    seconds = {}
    for tier in TIERS:
        profile = load_profile("1080p", Settings().configs, [f"preview.quality={tier}"]).preview
        branches = profile.evaluated.branches(profile.steps)
        guided = sum({GUIDED: 1.0, 1: unguided, 0: 0.0}[count] for count in branches)
        seconds[tier] = round(PREVIEW_GPU_S * guided / profile.steps + REST_GPU_S, 1)
    return seconds


def _parts(chosen: argparse.Namespace, axis: Axis, images: Path) -> Iterator[Part]:
    """The first prompts of every kind and number of steps come first, so that a run cut short has some of each."""
    kinds: list[Kind] = chosen.kinds
    by_kind = {
        kind: wanted_clips(
            max(1, chosen.clips // SEEDS), seeds_per_prompt=SEEDS, seed=chosen.seed, kinds=[kind], images=images
        )
        for kind in kinds
    }
    size = PROMPTS_AT_ONCE * SEEDS
    for start in range(0, chosen.clips, size):
        for steps in sorted(chosen.steps, reverse=True):
            for wanted in by_kind.values():
                if some := wanted[start : start + size]:
                    yield Part(axis, steps, tuple(some))


def _names(part: Part) -> set[tuple[int, str]]:
    return {(part.steps, one.name) for one in part.wanted}


def _run(parts: Sequence[Part], place: Place, processes: int, limit_s: float) -> int:
    """Parts that did not come to their end."""
    started, failed = time.monotonic(), 0
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(measure, part, place, time.time() + limit_s) for part in parts]
        for count, ready in enumerate(as_completed(waiting), start=1):
            if error := ready.exception():
                failed += 1
                sys.stderr.write(f"{type(error).__name__}: {error}\n")
            sys.stderr.write(f"{count}/{len(parts)} parts after {time.monotonic() - started:.0f} s\n")
    return failed


def measure(part: Part, place: Place, ends_at: float) -> None:
    """Render and judge a part's clips value by value, writing a line for each that has none yet."""
    axis = part.axis
    written = {(line["steps"], line["name"], line[axis.name]) for line in place.measured()}
    references: dict[str, str] = {}
    for value in axis.values:
        if time.time() > ends_at:
            return
        for store, one, key, seconds in _rendered(part, value, place):
            if value == axis.reference:
                references[one.name] = key
            if (part.steps, one.name, value) in written:
                continue
            verdict = kept_verdict(store, key, one.asked)
            other = one.name if value != axis.reference else f"{one.name.rpartition('-')[0]}-0"
            reference = references.get(other)
            likeness = clip_likeness(store, key, reference) if reference and reference != key else None
            place.write(
                {"steps": part.steps, "kind": one.kind, "name": one.name, axis.name: value, "passed": verdict.passed}
                | {"all_five": verdict.has_all_five, "preview_s": seconds, "likeness": likeness and asdict(likeness)}
            )


def _rendered(part: Part, value: str, place: Place) -> Iterator[tuple[ArtifactStore, Wanted, str, float]]:
    """The part's clips under a value, each with the key of its delivered file and the seconds of its preview."""
    overrides = [f"preview.steps={part.steps}", *STEPS[part.steps], *part.axis.values[value]]
    profile_of = Profiles(place.settings.configs, PROFILES[part.wanted[0].kind], overrides)
    file = place.folder / f"batch-{part.steps}-{part.wanted[0].name}.jsonl"  # pictures lie below its folder
    write_batch(part.wanted, file)
    by_name = {one.name: one for one in part.wanted}
    batch = read_batch(file, profile_of).require_good()
    deployment = Deployment(place.settings)
    render = ClipRender(batch.clips, batch.profiles, deployment, name="tiers", progress=Silent())
    for outcome in render.render():
        if outcome.failure is not None:
            raise outcome.failure.error or Magi2Error("a clip failed")
        manifests = {result.stage: deployment.store.find(result.stage, result.key or "") for result in outcome.results}
        preview = next(manifest for stage, manifest in manifests.items() if stage == "preview")
        seconds = preview.timings["make_s"] if preview else float("nan")
        for name in outcome.clip.names:
            yield deployment.store, by_name[name], outcome.results[-1].key or "", seconds


def summed_up(lines: Sequence[dict[str, Any]], axis: Axis = AXES["tier"]) -> dict[str, Any]:
    """By number of steps, kind and value, and for all of them together: what is right of what the reference gets
    right."""
    by_clip = {(line["steps"], line["name"], line[axis.name]): line for line in lines}
    settings = sorted({(line["steps"], line["kind"]) for line in lines})
    rows = [
        {"steps": steps, "kind": kind, axis.name: value, **_row(lines, by_clip, axis, value, steps=steps, kind=kind)}
        for steps, kind in settings
        for value in axis.values
    ]
    of_all = [{axis.name: value, **_row(lines, by_clip, axis, value)} for value in axis.values]
    return {axis.rows: of_all, "by_steps_and_kind": rows, "wrong": _wrong(lines, by_clip, axis)}


def _row(
    lines: Sequence[dict[str, Any]], by_clip: dict[tuple[int, str, str], Any], axis: Axis, value: str, **where: Any
) -> dict[str, Any]:
    clips = [line for line in lines if line[axis.name] == value and all(line[name] == v for name, v in where.items())]
    pairs = [(line, by_clip.get((line["steps"], line["name"], axis.reference))) for line in clips]
    right = [line for line, reference in pairs if reference and all(reference["passed"].values())]
    everything = [all(line["passed"].values()) for line in right]
    measures = {
        name: [line["passed"][name] for line in right if name in line["passed"]] for name in (*MEASURES, "sync")
    }
    likeness = [line["likeness"] for line in clips if line["likeness"]]
    return {
        "clips": len(clips),
        f"right_by_{axis.reference}": len(right),
        "right_in_everything": sum(everything),
        "percent_right": _percent(everything),
        "percent_by_measure": {name: _percent(passed) for name, passed in measures.items() if passed}
        | {"all_five": _percent([line["all_five"] for line in right])},
        "preview_s": round(mean(line["preview_s"] for line in clips), 2) if clips else None,
        "against" if value != axis.reference else "against_the_other_seed": _likeness(likeness),
    }


def _percent(passed: Sequence[bool]) -> float | None:
    return round(100 * sum(passed) / len(passed), 2) if passed else None


def _likeness(found: Sequence[dict[str, float | None]]) -> dict[str, Any]:
    """Mean and worst of what clips are like; frames that are all equal have no PSNR and are counted."""
    summary: dict[str, Any] = {"clips": len(found), "equal_frames": sum(each["psnr_db"] is None for each in found)}
    for name in found[0] if found else ():
        values = [value for each in found if (value := each[name]) is not None]
        worst = max if name.endswith("l2") else min
        summary[name] = {"mean": round(mean(values), 5), "worst": round(worst(values), 5)} if values else None
    return summary


def _wrong(
    lines: Sequence[dict[str, Any]], by_clip: dict[tuple[int, str, str], Any], axis: Axis
) -> list[dict[str, Any]]:
    """Clips that the reference gets right and another value does not."""
    return [
        {name: line[name] for name in ("steps", "name", axis.name)}
        | {"wrong": [name for name, is_right in line["passed"].items() if not is_right]}
        for line in lines
        if not all(line["passed"].values())
        and (reference := by_clip.get((line["steps"], line["name"], axis.reference)))
        and all(reference["passed"].values())
    ]


if __name__ == "__main__":
    sys.exit(main())
