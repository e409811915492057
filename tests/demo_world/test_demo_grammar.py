"""The demo's scenes, their wordings, and reading them back."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from demo_world.reading import Request, read_caption
from demo_world.scenes import (
    BACKGROUNDS,
    COLOURS,
    MOTIONS,
    SHAPES,
    SIZES,
    SOUNDS,
    SPEEDS,
    TOUCHING,
    Scene,
    draw_scene,
)
from demo_world.wordings import (
    DEFECTS,
    FIGURE_STYLES,
    STYLES,
    Style,
    encoder_text,
    enhance_offline,
    write_caption,
    write_unconditional,
)
from magi2.errors import InputError
from magi2.prompts.compact import compact_prompt
from magi2.prompts.enhance import enhance
from magi2.prompts.instructions import CaptionFormat

SCENES_PER_STYLE = 150


@pytest.mark.parametrize("style", STYLES)
def test_every_wording_is_read_back_as_its_scene(style: Style) -> None:
    rng = random.Random(11)
    for _ in range(SCENES_PER_STYLE):
        scene = draw_scene(rng)
        caption = write_caption(scene, rng, style)
        assert read_caption(caption).fits(scene), caption


@pytest.mark.parametrize("compact_format", ["json", "markdown"])
@pytest.mark.parametrize("style", STYLES)
def test_offline_enhancement_keeps_what_a_prompt_asks_for(style: Style, compact_format: CaptionFormat) -> None:
    rng = random.Random(12)
    for _ in range(20):
        prompt = write_caption(draw_scene(rng), rng, style)
        caption = enhance(prompt, mode="offline", aspect_ratio="2:1", compact_format=compact_format)
        assert read_caption(compact_prompt(caption.text)) == read_caption(prompt), prompt


@pytest.mark.parametrize("style", ["json", "compact", "offline"])
def test_structured_prompts_reach_the_encoder_in_the_words_of_training(style: Style) -> None:
    rng = random.Random(13)
    for seed in range(30):
        prompt = write_caption(draw_scene(rng), random.Random(seed), style)
        enhanced = enhance(prompt, mode="offline", aspect_ratio="2:1", compact_format="json")
        assert compact_prompt(enhanced.text) == compact_prompt(prompt)


@pytest.mark.parametrize("style", FIGURE_STYLES)
def test_a_figure_prompt_asks_for_motion_and_sound_and_leaves_the_look_to_the_image(style: Style) -> None:
    rng = random.Random(19)
    for _ in range(SCENES_PER_STYLE):
        scene, other = draw_scene(rng), draw_scene(rng)
        prompt = write_caption(scene, rng, style)
        request = read_caption(prompt)
        assert (request.shape, request.colour, request.background, request.size) == (None,) * 4
        assert request.fits(scene), prompt
        assert read_caption(prompt, pictured=scene) == replace(
            request, shape=scene.shape, colour=scene.colour, background=scene.background, size=scene.size
        )
        assert read_caption(prompt, pictured=other).shape == other.shape


@pytest.mark.parametrize("style", FIGURE_STYLES)
def test_figure_prompts_reach_the_encoder_readable_with_and_without_enhancement(style: Style) -> None:
    rng = random.Random(20)
    for _ in range(20):
        prompt = write_caption(draw_scene(rng), rng, style)
        enhanced = enhance_offline(prompt, has_figure=True)
        assert enhance_offline(enhanced, has_figure=True) == enhanced
        for caption in (prompt, enhanced):
            assert read_caption(encoder_text(caption, has_figure=True)) == read_caption(prompt), caption


def test_a_prompt_may_name_what_its_image_shows_but_not_something_else() -> None:
    prompt = "The object of <Figure 1>, a red circle, moves up on a blue background, with a low tone."
    scene = Scene("circle", "red", "blue", "small", "slow", "up", "low")
    assert read_caption(prompt, pictured=scene) == Request("circle", "red", "blue", "small", None, "up", "low")
    with pytest.raises(InputError, match="circle and square for the shape"):
        read_caption(prompt, pictured=replace(scene, shape="square"))


def test_contacts_of_unsaid_pace_are_slow() -> None:
    rng = random.Random(18)
    scenes = [scene for scene in (draw_scene(rng) for _ in range(1500)) if scene.motion in TOUCHING]
    open_pace = {scene.speed for scene in scenes if read_caption(write_caption(scene, rng)).speed is None}
    assert open_pace == {"slow"}


def test_every_value_of_the_world_is_drawn_and_none_is_impossible() -> None:
    rng = random.Random(14)
    scenes = [draw_scene(rng) for _ in range(2000)]
    assert all(scene.is_possible for scene in scenes)
    worlds = {
        **{"shape": SHAPES, "colour": COLOURS, "background": BACKGROUNDS, "size": SIZES, "speed": SPEEDS},
        **{"motion": MOTIONS, "sound": SOUNDS},
    }
    for name, values in worlds.items():
        assert {getattr(scene, name) for scene in scenes} == set(values)


@pytest.mark.parametrize("held_out", [True, False])
def test_training_and_measuring_never_share_a_combination(held_out: bool) -> None:
    rng = random.Random(15)
    assert {draw_scene(rng, held_out=held_out).is_held_out for _ in range(100)} == {held_out}


def test_a_tenth_of_all_combinations_is_held_out() -> None:
    rng = random.Random(16)
    assert 0.07 < sum(draw_scene(rng).is_held_out for _ in range(3000)) / 3000 < 0.13


def test_what_a_prompt_leaves_open_is_not_asked_for() -> None:
    request = read_caption("a red circle moves left to right on a blue background, with a low tone")
    assert request == Request("circle", "red", "blue", None, None, "right", "low")
    slow = Scene("circle", "red", "blue", "large", "slow", "right", "low")
    assert request.fits(slow) and not read_caption(
        "a red circle moves quickly left to right on a blue background, with a low tone"
    ).fits(slow)


@pytest.mark.parametrize(
    ("prompt", "what"),
    [
        ("a red fox in snow", "none for the shape"),
        ("a red circle moves up on a blue background", "none for the sound"),
        (
            "a red circle moves up and spins in place on a blue background, with a low tone",
            "spin and up for the motion",
        ),
        ("a pink circle moves up on a blue background, with a low tone", "none for the shape"),
        ("", "none"),
    ],
)
def test_a_prompt_outside_the_grammar_is_refused_with_the_reason(prompt: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        read_caption(prompt)


def test_texts_without_a_scene_are_empty_or_made_of_defects() -> None:
    rng = random.Random(17)
    texts = {write_unconditional(rng) for _ in range(50)}
    assert "" in texts and len(texts) > 10
    assert {part for text in texts if text for part in text.split(", ")} <= set(DEFECTS)
