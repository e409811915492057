"""A scene as a person would ask for it: English and Chinese sentences, and structured captions."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any, Literal, get_args

from demo_world.scenes import TOUCHING, Scene
from demo_world.vocabulary import CHINESE, ENGLISH, FIGURE, Vocabulary
from magi2.prompts.compact import compact_prompt
from magi2.prompts.enhance import enhance
from magi2.prompts.figures import Figure, add_figure_hint

Style = Literal[
    "sentence",
    "phrase",
    "background_first",
    "list",
    "three_sentences",
    "sound_first",
    "chinese",
    "chinese_background_first",
    "json",
    "compact",
    "offline",
    "figure",
    "figure_phrase",
    "figure_background_first",
    "figure_sound_first",
    "figure_chinese",
    "figure_chinese_sound_first",
    "figure_offline",
]
FIGURE_STYLES: tuple[Style, ...] = tuple(style for style in get_args(Style) if style.startswith("figure"))
"""Prompts for a clip with a reference image, which they leave the shape, its size and all colours to."""
STYLES: tuple[Style, ...] = tuple(style for style in get_args(Style) if style not in FIGURE_STYLES)
ASPECT_RATIO = "128:64"
_FIGURES = (Figure(1, FIGURE, "first_frame.png"),)

SIZE_SAID, SPEED_SAID = 0.6, 0.7
"""How often a caption mentions them; unsaid, either will do.

Fast contacts are always said to be fast. Left open, picture and sound each settle on a pace of their own: a trained
model was seen to bounce fast from the middle of its clip on and to beep slowly all along.
"""

DEFECTS = (
    *("blurry", "low quality", "distorted", "noisy picture", "flicker", "artifacts", "washed out", "ugly", "jitter"),
    *("static", "hiss", "crackle", "clipping", "background noise", "muffled", "echo", "wrong colors", "deformed"),
    *("overexposed", "text", "watermark"),
)

_SENTENCES: Mapping[Style, str] = {
    "sentence": "{An_object} {moves} on {a_background}, with {sound}.",
    "phrase": "{an_object} {moves} on {a_background}, with {sound}",
    "background_first": "On {a_background}, {an_object} {moves}. The sound is {sound}.",
    "list": "{object}, {background}, {moves}, {sound}",
    "three_sentences": "The clip shows {an_object} on {a_background}. It {moves}. We hear {sound}.",
    "sound_first": "{Sound} plays while {an_object} {moves} in front of {a_background}.",
    "chinese": "一个{object}在{background}上{moves}，声音是{sound}。",
    "chinese_background_first": "{background}上，一个{object}{moves}。声音：{sound}。",
    "figure": "The object of <Figure 1> {moves}, with {sound}.",
    "figure_phrase": "the shape in <Figure 1> {moves}, with {sound}",
    "figure_background_first": "On the background of <Figure 1>, its object {moves}. The sound is {sound}.",
    "figure_sound_first": "{Sound} plays while what is in <Figure 1> {moves}.",
    "figure_chinese": "<Figure 1>中的物体{moves}，声音是{sound}。",
    "figure_chinese_sound_first": "伴随着{sound}，<Figure 1>里的图形{moves}。",
}
_PLAIN = tuple(style for style in _SENTENCES if style not in FIGURE_STYLES)
_PLAIN_FIGURE = tuple(style for style in _SENTENCES if style in FIGURE_STYLES)


def write_caption(scene: Scene, rng: random.Random, style: Style | None = None) -> str:
    """A prompt for `scene` in `style`, by default any of `STYLES`.

    `rng` draws synonyms, and whether size and speed are said.
    """
    return _write(scene, rng, rng.choice(STYLES) if style is None else style)


def enhance_offline(prompt: str, *, has_figure: bool) -> str:
    """The caption that the demo's profiles make of a prompt, of a clip with or without a reference image."""
    images = _FIGURES if has_figure else ()
    return enhance(prompt, images=images, mode="offline", aspect_ratio=ASPECT_RATIO, compact_format="json").text


def encoder_text(caption: str, *, has_figure: bool) -> str:
    """What the text encoder reads for a caption as rendering hands it over, of a clip with or without an image."""
    return compact_prompt(add_figure_hint(caption, figures=_FIGURES if has_figure else ()))


def write_unconditional(rng: random.Random) -> str:
    """What stands where no scene is asked for: nothing, or a list of defects. It trains the unguided branch."""
    return "" if rng.random() < 0.5 else ", ".join(rng.sample(DEFECTS, rng.randint(3, 12)))


def _write(scene: Scene, rng: random.Random, style: Style) -> str:
    if style == "offline":
        return compact_prompt(enhance_offline(_write(scene, rng, rng.choice(_PLAIN)), has_figure=False))
    if style == "figure_offline":
        return enhance_offline(_write(scene, rng, rng.choice(_PLAIN_FIGURE)), has_figure=True)
    vocabulary = CHINESE if "chinese" in style else ENGLISH
    words = _choose_words(scene, vocabulary, rng)
    if style == "json":
        return json.dumps(_structured(scene, words), ensure_ascii=False)
    if style == "compact":
        return compact_prompt(json.dumps(_structured(scene, words)))
    return _SENTENCES[style].format(**words)


def _choose_words(scene: Scene, vocabulary: Vocabulary, rng: random.Random) -> dict[str, str]:
    blank = " " if vocabulary.is_spaced else ""
    says_speed = rng.random() < SPEED_SAID or (scene.speed == "fast" and scene.motion in TOUCHING)
    speed = rng.choice(vocabulary.speeds[scene.speed]) + blank if says_speed else ""
    size = vocabulary.sizes[scene.size] + blank if rng.random() < SIZE_SAID else ""
    thing = f"{size}{vocabulary.colours[scene.colour]}{blank}{vocabulary.shapes[scene.shape]}"
    sound = rng.choice(vocabulary.sounds[scene.sound])
    background = rng.choice(vocabulary.backgrounds).format(colour=vocabulary.colours[scene.background])
    return {
        "object": thing,
        "an_object": _with_article(thing),
        "An_object": _with_article(thing).capitalize(),
        "moves": rng.choice(vocabulary.motions[scene.motion]).format(q=speed).strip(),
        "background": background,
        "a_background": _with_article(background),
        "sound": sound,
        "Sound": sound.capitalize(),
    }


def _structured(scene: Scene, words: dict[str, str]) -> dict[str, Any]:
    """The scene as a text-to-video caption of the trained shape, with names and times as enhancement writes them."""
    sentence = "{An_object} {moves} on {a_background}.".format(**words)
    thing = {
        "object_id": "<object 1>",
        "description": words["an_object"],
        "shape_and_color": f"{scene.colour} {scene.shape}",
    }
    basic = {"timestamp_range": "00:00.0-00:10.0", "segment_description": f"The {scene.shape} {words['moves']}."}
    return {
        "global_layer": {
            "context": "abstract animation",
            "description": sentence,
            "audio_baseline": {"ambience": words["sound"]},
            "objects_static": [thing],
        },
        "dynamic_layer": {"timeline_segments": [{"segment_basic_info": basic}]},
    }


def _with_article(words: str) -> str:
    return ("an " if words[0] in "aeio" else "a ") + words
