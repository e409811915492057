"""What is tried on an accelerator: every promise that a CPU alone cannot keep."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu_site import BATCH, Digests, Site, SkippedError, compare, judged, require
from magi2 import platform
from magi2.media.reading import count_frames, read_frames

FULL_HD = (
    *("preview.width=896", "preview.height=512", "preview.steps=2"),
    *("refiner.width=1920", "refiner.height=1088", "refiner.steps=1"),
    *("delivery.size=[1920,1080]", "delivery.fit=crop"),
)
FRAMES = 249
LAYOUTS = ("sp2.cfg1.ep2", "sp1.cfg2.ep2")


def demo(dtype: str, site: Site) -> dict[str, Any]:
    """The demo's batch, with an image, a structured and a refined row: as asked, and the same bytes twice."""
    options = ("--prompts", str(BATCH), "--profile", "demo", *_set(f"compute_dtype={dtype}"))
    first, second = (site.render(f"{dtype}-{run}", *options) for run in (1, 2))
    measures = judged(first)
    equal = compare(site.digests(f"{dtype}-1"), site.digests(f"{dtype}-2"))
    seconds = {"first": first["seconds"], "second": second["seconds"]}
    return {"as_asked": measures, "artifacts_with_equal_bytes": equal, "render_s": seconds}


def full_hd(site: Site) -> dict[str, Any]:
    """Networks of a few channels through every stage to a playable clip of 1920x1080."""
    weights = site.folder / "tiny"
    site.magi2("checkpoint", "make-tiny", str(weights), "--seed", "1")
    options = ("--prompt", "A lighthouse above a stormy sea", "--profile", "tiny", *_set(*FULL_HD))
    summary = site.render("full-hd", *options, *_set("compute_dtype=bfloat16"), checkpoint=weights)
    clip = Path(summary["clips"][0]["files"]["clip.mp4"])
    height, width, _ = next(read_frames(clip, indices=frozenset({0}))).shape
    frames = count_frames(clip)
    require((width, height, frames) == (1920, 1080, FRAMES), f"{clip.name}: {frames} frames of {width}x{height}")
    return {"render_s": summary["seconds"], "stages": summary["clips"][0]["stages"]}


def resume(site: Site) -> dict[str, Any]:
    """Killed in the denoising loop, a clip goes on from its snapshot to the bytes of one that was not killed."""
    options = _red_ball(site)
    site.render("whole", *options)
    snapshots = site.store("killed")
    saved = partial(_has, snapshots, "documents/snapshots/preview/*.safetensors")
    site.kill_once("killed", *options, when=saved, MAGI2_SNAPSHOT_EVERY="2")
    require(not _has(snapshots, "artifacts/preview/*/*/manifest.json"), "the preview was finished before the kill")
    site.render("killed", *options, MAGI2_SNAPSHOT_EVERY="2")
    require(not saved(), "the snapshot stayed")
    return {"artifacts_with_equal_bytes": compare(site.digests("whole"), site.digests("killed"))}


def from_latents(site: Site) -> dict[str, Any]:
    """Decoded again from stored latents, a clip has the same bytes; no earlier stage computes."""
    options = _red_ball(site)
    site.render("latents", *options)
    before = site.digests("latents")
    for stage in ("decode", "mux"):
        shutil.rmtree(site.store("latents") / "artifacts" / stage)
    stages = site.render("latents", *options)["clips"][0]["stages"]
    made = {stage for stage, state in stages.items() if state == "made"}
    require(made == {"decode", "mux"}, f"made again: {stages}")
    return {"stages": stages, "artifacts_with_equal_bytes": compare(before, site.digests("latents"))}


def several_cards(site: Site) -> dict[str, Any]:
    """The demo's batch over two ranks and NCCL: as asked, and the same bytes twice, layout by layout."""
    count = platform.device_count(accelerator=site.accelerator)
    if count < 2:
        raise SkippedError(f"{count} accelerator here, two are needed")
    found: dict[str, Any] = {}
    for layout in LAYOUTS:
        options = ("--prompts", str(BATCH), "--profile", "demo", "--layout", layout)
        stores = [f"{layout}-{run}" for run in (1, 2)]
        first, _ = (site.render(store, *options) for store in stores)
        one, two = map(site.digests, stores)
        found[layout] = {
            "as_asked": judged(first),
            "artifacts_with_equal_bytes": compare(_latents(one), _latents(two)),
            "render_s": first["seconds"],
        }
    return found


def _latents(digests: Digests) -> Digests:
    return {name: payloads for name, payloads in digests.items() if name.startswith(("preview/", "refine/"))}


def _red_ball(site: Site) -> tuple[str, ...]:
    """Options for the batch's first row alone, with enough steps that there is time for a kill among them."""
    row = json.loads(BATCH.read_text(encoding="utf-8").splitlines()[0])
    batch = site.folder / "red_ball.jsonl"
    batch.write_text(json.dumps(row) + "\n")
    return ("--prompts", str(batch), "--profile", "demo", *_set("preview.steps=60"))


def _set(*overrides: str) -> tuple[str, ...]:
    return tuple(part for override in overrides for part in ("--set", override))


def _has(store: Path, pattern: str) -> bool:
    return next(store.glob(pattern), None) is not None


STEPS: dict[str, Callable[[Site], dict[str, Any]]] = {
    "demo_float32": partial(demo, "float32"),
    "demo_bfloat16": partial(demo, "bfloat16"),
    "full_hd": full_hd,
    "resume": resume,
    "from_latents": from_latents,
    "several_cards": several_cards,
}
"""By name, in the order in which they run."""
