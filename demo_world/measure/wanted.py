"""The clips that a checkpoint is measured on: held-out prompts, refined and not, and reference images with prompts."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from PIL import Image

from demo_world.picture import draw_frames
from demo_world.prompts import held_out_rows
from demo_world.reading import Request, read_caption
from demo_world.scenes import Scene, draw_scene
from demo_world.takes import draw_pictured
from demo_world.wordings import FIGURE_STYLES, write_caption
from magi2.media.frames import to_uint8

Kind = Literal["preview", "refined", "image"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PROFILES: dict[Kind, str] = {"preview": "demo", "refined": "demo-refined", "image": "demo"}

IMAGE_HEIGHT = 128
IMAGE_FPS, IMAGE_FRAMES = 12.5, 125
"""A reference image is one frame of ten seconds, whichever."""


@dataclass(frozen=True)
class Wanted:
    """A clip to be made, and what it should show and sound like; `image` is its `<Figure 1>`."""

    kind: Kind
    name: str
    prompt: str
    seed: int
    asked: Request
    image: Path | None = None

    @property
    def row(self) -> dict[str, str | int]:
        """Its row of a batch file."""
        image = {} if self.image is None else {"image": str(self.image)}
        return {"name": self.name, "profile": PROFILES[self.kind], "prompt": self.prompt, "seed": self.seed, **image}


def wanted_clips(
    count: int, *, seeds_per_prompt: int, seed: int, kinds: Collection[Kind], images: Path
) -> list[Wanted]:
    """`count` prompts of each of `kinds`, each with several clip seeds; refined clips are those of the previews.

    Reference images are drawn into the folder `images`. The same arguments give the same clips.
    """
    wanted: list[Wanted] = []
    for row in held_out_rows(count, seeds_per_prompt=seeds_per_prompt, seed=seed):
        prompt, clip_seed = str(row["prompt"]), int(row["seed"])
        asked = read_caption(prompt)
        without_image = [kind for kind in KINDS if kind in kinds and kind != "image"]
        wanted += [Wanted(kind, f"{kind}-{row['name']}", prompt, clip_seed, asked) for kind in without_image]
    if "image" in kinds:
        wanted += _from_images(count, seeds_per_prompt=seeds_per_prompt, rng=random.Random(seed + 1), images=images)
    return wanted


def _from_images(count: int, *, seeds_per_prompt: int, rng: random.Random, images: Path) -> list[Wanted]:
    wanted = []
    for index in range(count):
        scene = draw_scene(rng, held_out=True)
        prompt = write_caption(scene, rng, rng.choice(FIGURE_STYLES))
        image = images / f"{index:03d}.png"
        draw_reference(scene, rng, image)
        asked = read_caption(prompt, pictured=scene)
        for clip_seed in range(seeds_per_prompt):
            wanted.append(Wanted("image", f"image-{index:03d}-{clip_seed}", prompt, clip_seed, asked, image))
    return wanted


def draw_reference(scene: Scene, rng: random.Random, path: Path) -> None:
    """A PNG of the scene's shape and colours at `path`, from any moment of any motion."""
    take, frame = draw_pictured(scene, rng), rng.randrange(IMAGE_FRAMES)
    frames = draw_frames(take, height=IMAGE_HEIGHT, width=2 * IMAGE_HEIGHT, fps=IMAGE_FPS, frame_count=1, first=frame)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(to_uint8(frames)[0].numpy()).save(path)


def write_batch(wanted: Sequence[Wanted], path: Path) -> None:
    """The clips as a batch file, which `magi2 render --prompts` takes as well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one.row, ensure_ascii=False) + "\n" for one in wanted), encoding="utf-8")
