"""Latents that are written down for a scene become, by the product's own path, a clip that shows and sounds like it.

Nothing here needs the trained transformers: what they would make is put into the store in their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from demo_world.audio_latents import audio_latents
from demo_world.judge.form import measure_shape, measure_size
from demo_world.judge.listening import Heard, listen_to
from demo_world.judge.looking import Look, look, look_at
from demo_world.judge.verdict import judge
from demo_world.picture import draw_frames
from demo_world.reading import read_caption
from demo_world.scenes import Scene
from demo_world.takes import Take
from demo_world.video_latents import draw_from_latents, video_latents
from magi2.artifacts.manifest import ManifestDraft
from magi2.artifacts.recipe import Recipe
from magi2.artifacts.tensors import save_tensors
from magi2.checkpoints.layout import COMPONENTS
from magi2.media.frames import to_uint8
from magi2.recipes.book import frame_rate
from magi2.sampling.noise import ClipGenerator
from magi2.stages.context import StageContext
from magi2.stages.contracts import TENSORS, Contract, check_contract, encode_contract, preview_contract, refine_contract
from magi2.stages.prepare import prepare
from magi2.stages.render import run_stage
from magi2.types import CLIP, Clip, StageName
from tests.meaning.meaning_demo import CHECKPOINT, demo_profile, demo_settings
from tests.render_helpers import make_clip, render, states

pytestmark = pytest.mark.demo_world

WRITTEN = ("turbo_vae", "audio_vae", "video_vae")

BOUNCE = "A small yellow triangle bounces quickly on the floor on a blue background, with a beep at every bounce."
PREVIEWS = [
    BOUNCE,
    "A large red circle moves slowly from left to right on a gray background, with a rising tone.",
    "A small white square spins slowly in place on a green background, with a harsh buzz.",
    "A large purple triangle slides quickly diagonally down and to the left on an orange background, with a low tone.",
]
REFINED = "A small red triangle moves quickly from side to side on a black background, with a beep on each contact."
OTHERWISE = {
    "colour": BOUNCE.replace("yellow", "red"),
    "background": BOUNCE.replace("blue", "gray"),
    "shape": BOUNCE.replace("triangle", "square"),
    "size": BOUNCE.replace("small", "large"),
    "speed": BOUNCE.replace("quickly", "slowly"),
    "motion": BOUNCE.replace("bounces quickly on the floor", "moves quickly from side to side"),
    "sound": BOUNCE.replace("a beep at every bounce", "a low tone"),
}
FROM_IMAGE = "The object of <Figure 1> moves slowly from left to right, with a low tone."


def take_of(caption: str) -> Take:
    """The one scene that a caption which leaves nothing open asks for."""
    return Take(Scene(**vars(read_caption(caption))), place_x=0.3, place_y=-0.4)


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's decoders and image encoder, and random weights for what is not asked to make anything here."""
    folder = tmp_path_factory.mktemp("written") / "checkpoint"
    folder.mkdir()
    for component in COMPONENTS.values():
        source = CHECKPOINT if component.name in WRITTEN else tiny_checkpoint
        (folder / component.folder).symlink_to(source / component.folder)
    return folder


@dataclass(frozen=True)
class Delivered:
    """What is seen and heard of a caption's delivered clip, and which of its stages were made."""

    seen: Look
    heard: Heard
    states: Mapping[str, str]


@pytest.fixture(scope="module")
def delivered(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Delivered]:
    """The clips of all captions."""
    store = tmp_path_factory.mktemp("written") / "store"
    return deliver(store, checkpoint, "demo", PREVIEWS) | deliver(store, checkpoint, "demo-refined", [REFINED])


def deliver(store: Path, checkpoint: Path, profile_name: str, captions: list[str]) -> dict[str, Delivered]:
    profile = demo_profile(profile_name)
    clips = [make_clip(profile, caption) for caption in captions]
    context = prepare(profile, demo_settings(store, checkpoint), clips)
    run_stage(context, StageName.ENHANCE, clips)
    for clip in clips:
        write_latents(context, clip)
    found = {}
    for outcome in render(context, clips):
        assert outcome.failure is None, outcome.failure
        file = context.store.fetch(StageName.MUX, outcome.results[-1].key or "", CLIP)
        found[outcome.clip.prompt] = Delivered(look_at(file), listen_to(file), states(outcome))
    return found


def write_latents(context: StageContext, clip: Clip) -> None:
    """Store what perfect transformers would make of the clip."""
    profile, take = context.book.profile, take_of(clip.prompt)
    contract = preview_contract(profile)
    tensors = {
        "video": exact_video(take, contract, fps=12.5),
        "audio": audio_latents(take, contract["audio"].shape[1]),
        "generator_state": ClipGenerator(clip.seed, torch.device("cpu")).state(),
    }
    put(context, context.recipe(StageName.PREVIEW, clip), tensors, contract)
    if profile.refiner is not None:
        contract = refine_contract(profile)
        video = exact_video(take, contract, fps=float(frame_rate(profile)))
        put(context, context.recipe(StageName.REFINE, clip), {"video": video}, contract)


def exact_video(take: Take, contract: Contract, *, fps: float) -> Tensor:
    _, _, count, height, width = contract["video"].shape
    return video_latents(take, height=height, width=width, count=count, fps=fps)


def put(context: StageContext, recipe: Recipe, tensors: Mapping[str, Tensor], contract: Contract) -> None:
    with context.store.stage_folder(recipe.stage, recipe.key) as folder:
        check_contract(save_tensors(folder / TENSORS, tensors), contract, "written latents")
        context.store.publish(ManifestDraft(recipe), {TENSORS: folder / TENSORS})


@pytest.mark.parametrize("caption", [*PREVIEWS, REFINED])
def test_written_latents_are_delivered_as_the_scene_that_they_describe(
    delivered: dict[str, Delivered], caption: str
) -> None:
    clip = delivered[caption]
    verdict = judge(clip.seen, clip.heard, read_caption(caption))
    assert verdict.wrong == (), verdict.as_json()
    assert ("sync" in verdict.passed) == ("beep" in caption)
    assert clip.seen.fps == (25.0 if caption is REFINED else 12.5)


def test_delivery_of_stored_latents_makes_no_latents(delivered: dict[str, Delivered]) -> None:
    latents = {stage: state for stage, state in delivered[REFINED].states.items() if stage in ("preview", "refine")}
    assert latents == {"preview": "reused", "refine": "reused"}


@pytest.mark.parametrize("measure", OTHERWISE)
def test_the_same_clip_is_wrong_for_another_caption_in_exactly_what_differs(
    delivered: dict[str, Delivered], measure: str
) -> None:
    clip = delivered[BOUNCE]
    assert judge(clip.seen, clip.heard, read_caption(OTHERWISE[measure])).wrong == (measure,)


def test_reference_image_is_encoded_as_what_it_shows(checkpoint: Path, tmp_path: Path) -> None:
    profile = demo_profile("demo")
    takes = [replace(take_of(caption), place_x=0.0) for caption in (*PREVIEWS, REFINED)]
    images = [tmp_path / f"{index}.png" for index in range(len(takes))]
    for take, image in zip(takes, images, strict=True):
        pixels = draw_frames(take, height=128, width=256, fps=12.5, frame_count=20)[:, :, -1:]
        Image.fromarray(to_uint8(pixels)[0].numpy()).save(image)
    clips = [make_clip(profile, FROM_IMAGE, image=image) for image in images]
    context = prepare(profile, demo_settings(tmp_path / "store", checkpoint), clips)
    for stage in (StageName.ENHANCE, StageName.ENCODE):
        assert not any(result.error for result in run_stage(context, stage, clips))
    for take, clip in zip(takes, clips, strict=True):
        tensors = context.tensors(context.recipe(StageName.ENCODE, clip), encode_contract(profile, 1), clip)
        picture = draw_from_latents(tensors["reference_latents_0"], height=128)
        seen = look(picture[0].permute(1, 2, 3, 0), fps=12.5)
        shape = measure_shape(seen)
        scene = take.scene
        assert (seen.colour, seen.background, shape) == (scene.colour, scene.background, scene.shape)
        assert measure_size(seen, shape) == scene.size
