"""The profiles that render the demo's world, and the batch that shows it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from demo_world.reading import read_caption
from demo_world.scenes import TOUCHING, draw_scene
from demo_world.wordings import DEFECTS, FIGURE_STYLES, STYLES, Style, write_caption
from magi2.batches.batch_file import read_batch
from magi2.config.load import load_negative_prompt, load_profile
from magi2.config.profiles import Profiles
from magi2.config.settings import Settings
from magi2.prompts.enhance import enhance
from magi2.recipes.book import RecipeBook, delivered_frames, encoder_text, prompt_figures
from magi2.types import Clip, FigureImage, StageName

CONFIGS = Settings().configs
EXAMPLES = CONFIGS.parent / "examples" / "shapes.jsonl"
DEMO, REFINED = load_profile("demo", CONFIGS), load_profile("demo-refined", CONFIGS)
IMAGE = (FigureImage(1, Path("first_frame.png"), "a" * 64),)


def text_of(clip: Clip) -> str:
    """What the text encoder reads for a clip of the profile."""
    preview, enhancement = DEMO.preview, DEMO.enhancement
    caption = enhance(
        clip.prompt,
        images=prompt_figures(clip),
        mode=enhancement.mode,
        aspect_ratio=f"{preview.width}:{preview.height}",
        compact_format=enhancement.compact_format,
    )
    return encoder_text(clip, caption.text)


@pytest.mark.parametrize("style", [*STYLES, *FIGURE_STYLES])
def test_the_text_encoder_reads_what_a_prompt_of_any_style_asks_for(style: Style) -> None:
    rng = random.Random(23)
    for _ in range(15):
        prompt = write_caption(draw_scene(rng), rng, style)
        clip = Clip(prompt, 0, "demo", DEMO.digest(), figures=IMAGE if style in FIGURE_STYLES else ())
        assert read_caption(text_of(clip)) == read_caption(prompt), prompt


def test_the_negative_prompt_is_made_of_what_training_saw_without_a_scene() -> None:
    for profile in (DEMO, REFINED):
        words = load_negative_prompt(profile, CONFIGS)
        assert words is not None and set(words.split(", ")) <= set(DEFECTS)


def test_refining_a_clip_begins_with_its_finished_preview() -> None:
    fingerprints = dict.fromkeys(
        ("text_encoder", "preview", "refiner", "turbo_vae", "audio_vae", "video_vae"), "0" * 64
    )
    clip = Clip("a red circle", 1, "demo", DEMO.digest(), figures=IMAGE)
    books = [
        RecipeBook(
            profile,
            fingerprints=fingerprints,
            negative_prompt=load_negative_prompt(profile, CONFIGS),
            enhancement_mode="offline",
            enhancement_model=None,
        )
        for profile in (DEMO, REFINED)
    ]
    preview, refined = (book.chain(clip, clip.prompt)[StageName.PREVIEW].key for book in books)
    assert preview == refined
    assert (StageName.REFINE in DEMO.stages, StageName.REFINE in REFINED.stages) == (False, True)
    assert (delivered_frames(DEMO), delivered_frames(REFINED)) == (125, 249)


def test_both_profiles_deliver_whole_multiples_of_what_was_made() -> None:
    for profile in (DEMO, REFINED):
        made, size = profile.refiner or profile.preview, profile.delivery.size
        assert size is not None and size[0] % made.width == size[1] % made.height == 0


def test_every_example_is_in_the_demos_words_and_says_its_pace_where_something_bounces() -> None:
    clips = read_batch(EXAMPLES, Profiles(CONFIGS, "demo")).require_good().clips
    asked = [read_caption(clip.prompt) for clip in clips]
    assert all(request.speed is not None for request in asked if request.motion in TOUCHING)
    assert {clip.profile_name for clip in clips} == {"demo", "demo-refined"}
    assert all(bool(clip.figures) == (request.shape is None) for clip, request in zip(clips, asked, strict=True))
