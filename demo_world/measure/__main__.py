"""Measure a checkpoint of the demo's world: `python -m demo_world.measure --checkpoint FOLDER`.

Held-out prompts are rendered by the product's own whole path, under the profiles demo and demo-refined and from images,
and the delivered files are judged. An interrupted run goes on from what is stored. Exit status 0 when every target is
met, 1 when one is missed or a clip failed, 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from demo_world.measure.figures import all_figures, table
from demo_world.measure.judged import Job, Judged, Work, make_and_judge
from demo_world.measure.sheet import draw_sheet
from demo_world.measure.wanted import KINDS, PROFILES, Wanted, wanted_clips, write_batch
from magi2 import __version__
from magi2.batches.batch_file import read_batch
from magi2.checkpoints.layout import CheckpointFolder
from magi2.checkpoints.whole import required_components
from magi2.config.profiles import Profiles
from magi2.config.settings import Settings
from magi2.errors import Magi2Error

REPOSITORY = Path(__file__).resolve().parents[2]
PROMPTS_AT_ONCE = 4
"""Prompts that a process renders with one load of the weights."""


def main(arguments: list[str] | None = None) -> int:
    """Measure, write the figures, print them."""
    chosen = _parser().parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = str(chosen.threads)  # before any process starts
    try:
        return _measure(chosen)
    except Magi2Error as error:
        _say(str(error))
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m demo_world.measure", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=REPOSITORY / "examples" / "demo_checkpoint")
    parser.add_argument("--prompts", type=_at_least_one, default=64, help="held-out prompts of each kind of clip")
    parser.add_argument("--seeds", type=_at_least_one, default=2, help="clips of each prompt")
    parser.add_argument("--seed", type=int, default=2024, help="of the draw of prompts")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    # One thread each: a preview takes 12.2 s of processor time, and 17.6 s shared by two threads.
    parser.add_argument("--processes", type=_at_least_one, default=os.cpu_count(), help="which render at the same time")
    parser.add_argument("--threads", type=_at_least_one, default=1, help="of each process")
    parser.add_argument("--work", type=Path, default=REPOSITORY / "out" / "demo_checkpoint", help="store and pictures")
    parser.add_argument("--out", type=Path, help="the figures; by default measured.json in the folder of --work")
    return parser


def _at_least_one(text: str) -> int:
    if (count := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{count} is below 1")
    return count


def _measure(chosen: argparse.Namespace) -> int:
    folder = chosen.work.absolute()
    settings = replace(Settings.from_environment(), ckpt_root=chosen.checkpoint.absolute(), store=str(folder / "store"))
    wanted = wanted_clips(
        chosen.prompts, seeds_per_prompt=chosen.seeds, seed=chosen.seed, kinds=chosen.kinds, images=folder / "images"
    )
    jobs, work = _prepare(wanted, settings, folder / "batch.jsonl")
    origin = _origin(work, jobs) | {"processes": chosen.processes, "threads": chosen.threads}
    judged = sorted(_judged(jobs, work, chosen.processes), key=lambda one: one.wanted.name)
    figures = all_figures(judged) | origin
    out = chosen.out or folder / "measured.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.stdout.write(f"{table(figures['percent'])}\n")
    _say(f"{len(judged)} clips; figures in {out}")
    if shown := draw_sheet(judged, folder / "wrong.png"):
        _say(f"{shown} with something wrong: {folder / 'wrong.png'}")
    return 1 if figures["failed"] or any(target["is_missed"] for target in figures["targets"]) else 0


def _prepare(wanted: Sequence[Wanted], settings: Settings, batch_file: Path) -> tuple[list[Job], Work]:
    """The wanted clips as the product reads them from a batch file. Raises InputError listing bad rows."""
    write_batch(wanted, batch_file)
    profile_of = Profiles(settings.configs, PROFILES["preview"])
    by_name = {one.name: one for one in wanted}
    batch = read_batch(batch_file, profile_of).require_good()
    jobs = [(clip, tuple(by_name[name] for name in clip.names)) for clip in batch.clips]
    return jobs, Work(settings, batch.profiles)


def _judged(jobs: Sequence[Job], work: Work, processes: int) -> Iterator[Judged]:
    """Every clip as it gets ready, told of as it does."""
    started, done, total = time.monotonic(), 0, sum(len(wanted) for _, wanted in jobs)
    # Spawned, not forked: torch's threads do not survive a fork.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(make_and_judge, part, work) for part in _parts(jobs)]
        try:
            for ready in as_completed(waiting):
                for one in ready.result():
                    done += 1
                    left_s = (time.monotonic() - started) / done * (total - done)
                    _say(f"{done}/{total} {one.wanted.name}: {_outcome(one)}; {left_s / 60:.0f} min left")
                    yield one
        finally:
            pool.shutdown(cancel_futures=True)  # an error need not wait for hours of clips


def _parts(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs in parts of a few prompts each.

    A prompt with its seed is in one part under all its profiles, so that no two processes make the same preview.
    """
    together: dict[tuple[str, int, tuple[str, ...]], list[Job]] = {}
    for clip, wanted in jobs:
        images = tuple(figure.sha256 for figure in clip.figures)
        together.setdefault((clip.prompt, clip.seed, images), []).append((clip, wanted))
    groups = list(together.values())
    parts = [groups[start : start + PROMPTS_AT_ONCE] for start in range(0, len(groups), PROMPTS_AT_ONCE)]
    return [[job for group in part for job in group] for part in parts]


def _outcome(one: Judged) -> str:
    return "right" if one.is_right else one.error or f"wrong {', '.join(one.verdict.wrong if one.verdict else ())}"


def _origin(work: Work, jobs: Sequence[Job]) -> dict[str, Any]:
    """Which weights, code and libraries are measured. Raises CheckpointError naming a file that is missing."""
    weights = CheckpointFolder(work.settings.checkpoint_root())
    components = {
        name
        for digest, profile in work.profiles.items()
        for name in required_components(profile, [clip for clip, _ in jobs if clip.profile_digest == digest])
    }
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=REPOSITORY, capture_output=True, text=True
    )
    return {
        "checkpoint": {name: weights[name] for name in sorted(components)},
        "commit": described.stdout.strip() or None,
        "versions": {"magi2": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
