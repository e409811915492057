"""What changes which stage's key: every field of a profile, the inputs, the weights, and nothing positional."""

from __future__ import annotations

import shutil
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from magi2.checkpoints.layout import CheckpointFolder
from magi2.config.load import load_profile
from magi2.types import ARTIFACT_FOLDERS, NEGATIVE, Clip, FigureImage, StageName
from tests.recipes.recipe_books import FINGERPRINTS, FROM_IMAGE, FROM_PROMPT, changed, keys_of, make_book
from tests.render_helpers import CONFIGS, flip_byte

ENHANCE, ENCODE = StageName.ENHANCE, StageName.ENCODE
PREVIEW, REFINE, DECODE, MUX = StageName.PREVIEW, StageName.REFINE, StageName.DECODE, StageName.MUX
ALL = set(ARTIFACT_FOLDERS)
FROM_MUX = {MUX}
FROM_DECODE = {DECODE, *FROM_MUX}
FROM_REFINE = {REFINE, *FROM_DECODE}
FROM_PREVIEW = {PREVIEW, *FROM_REFINE}
FROM_ENCODE = {ENCODE, *FROM_PREVIEW}
FROM_TEXT = {NEGATIVE, *FROM_ENCODE}


def changed_by(override: str, clip: Clip, mode: str) -> set[StageName]:
    before, after = load_profile("tiny", CONFIGS), load_profile("tiny", CONFIGS, [override])
    return changed(keys_of(make_book(before, mode), clip), keys_of(make_book(after, mode), clip))


ARCHITECTURES = {
    "architectures.preview": ("preview", FROM_PREVIEW),
    "architectures.refiner": ("refiner", FROM_REFINE),
    "architectures.video_vae": ("wan2.2_vae", FROM_MUX),  # with an image or the Wan decoder it counts, see below
}
GUIDANCE = {
    "video_txt_guidance_scale": 4.0,
    "audio_txt_guidance_scale": 4.0,
    "use_cfg_trick": "true",
    "cfg_trick_start_frame": 9,
    "cfg_trick_value": 1.5,
    "use_dynamic_cfg": "true",
    "dynamic_cfg_start_t": 400,
    "dynamic_cfg_cutoff_value": 1.5,
    "use_skimmed_cfg_linear": "true",
    "skimmed_cfg_scale": 2.0,
    "cfg_rescale": 0.5,
}
FIELDS: dict[str, tuple[object, set[StageName]]] = {
    "name": ("other", set()),
    "description": ("other", set()),
    "quality.expect.motion": ("any", set()),
    "quality.expect.sound": ("any", set()),
    "compute_dtype": ("bfloat16", FROM_TEXT),
    "compute.weights": ("fp8", FROM_PREVIEW),
    "noise_device": ("accelerator", FROM_PREVIEW),
    **ARCHITECTURES,
    "text.max_tokens": (6000, FROM_TEXT),
    "text.on_overflow": ("truncate", FROM_TEXT),
    "text.use_negative_prompt": ("false", {NEGATIVE, *FROM_PREVIEW}),
    "text.negative_prompt": ("profiles/tiny.yaml", {NEGATIVE, *FROM_PREVIEW}),
    "text.negative_text": ("no fog", {NEGATIVE, *FROM_PREVIEW}),
    "enhancement.mode": ("offline", FROM_MUX),  # what it resolves to counts, see below
    "enhancement.compact_format": ("json", FROM_MUX),
    "preview.width": (160, FROM_PREVIEW),
    "preview.height": (96, FROM_PREVIEW),
    "preview.steps": (9, FROM_PREVIEW),
    "preview.shift": (6.5, FROM_PREVIEW),
    "preview.quality": ("high", FROM_PREVIEW),
    "preview.schedule": ("{guide_until_step: 5}", FROM_PREVIEW),
    "preview.tiers": ("{}", set()),
    "preview.use_ref_for_uncond": ("false", FROM_PREVIEW),
    "preview.ref_image_type": ("square", FROM_MUX),
    "preview.reference_background": ("[0, 0, 0]", FROM_MUX),  # with a transparent image more counts, see below
    **{f"preview.guidance.{name}": (value, FROM_PREVIEW) for name, value in GUIDANCE.items()},
    "refiner.width": (288, FROM_REFINE),
    "refiner.height": (160, FROM_REFINE),
    "refiner.steps": (3, FROM_REFINE),
    "refiner.shift": (4.5, FROM_REFINE),
    "refiner.guidance_scale": (1.5, FROM_REFINE),
    "refiner.noise_index": (200, FROM_REFINE),
    "decode.decoder": ("wan", FROM_DECODE),
    "decode.rounding": ("truncate", FROM_DECODE),
    "delivery.codec": ("hevc", FROM_MUX),
    "delivery.crf": (20, FROM_MUX),
    "delivery.preset": ("slow", FROM_MUX),
    "delivery.size": ("[128, 64]", FROM_MUX),
    "delivery.fit": ("scale", FROM_MUX),
    "delivery.pad_last_frame": ("true", FROM_MUX),
    "delivery.audio_bitrate_kbps": (128, FROM_MUX),
    "delivery.threads": (2, FROM_MUX),
    "delivery.target": ("studio", set()),
    "delivery.name": ("a.mp4", set()),
    "delivery.sidecar": ("full", set()),
    "delivery.provenance": ("full", FROM_MUX),
    "delivery.label": ("cn", FROM_MUX),
    "delivery.watermark": ("some-name", FROM_MUX),
}
"""Field -> another value, and the stages of a clip from a prompt alone that it changes.

A delivered file names its profile, so all that is part of one's identity changes mux.
"""
WITH_IMAGE = {
    "preview.width": FROM_ENCODE,
    "preview.height": FROM_ENCODE,
    "preview.ref_image_type": FROM_ENCODE,
    "architectures.video_vae": FROM_ENCODE,
}
"""Where a clip with an image differs."""
WITH_ENHANCEMENT = {"preview.width", "preview.height", "enhancement.compact_format"}
"""What a caption depends on besides: the picture's shape is told to the language model."""


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("mode", ["off", "offline", "llm"])
@pytest.mark.parametrize("clip", [FROM_PROMPT, FROM_IMAGE], ids=["prompt", "image"])
def test_a_field_changes_exactly_the_stages_that_it_must(field: str, mode: str, clip: Clip) -> None:
    value, expected = FIELDS[field]
    if clip.figures:
        expected = WITH_IMAGE.get(field, expected)
    enhanced = {ENHANCE} if mode != "off" and field in WITH_ENHANCEMENT else set()
    assert changed_by(f"{field}={value}", clip, mode) == expected | enhanced


def test_no_field_is_forgotten() -> None:
    # Has one allowed value; the others only say what a row changed, a size is called, a user agrees to.
    unlisted = {"duration_s", "changed", "experimental", "delivery.stretch"}
    assert leaves(load_profile("tiny", CONFIGS)) - unlisted == set(FIELDS)


def leaves(value: object, prefix: str = "") -> set[str]:
    """Dotted names of a profile's fields; an architecture counts as one."""
    if isinstance(value, BaseModel):
        names = list(type(value).model_fields)
    elif is_dataclass(value) and not prefix.startswith("architectures."):
        names = [field.name for field in fields(value)]
    else:
        return {prefix}
    dot = f"{prefix}." if prefix else ""
    return set().union(*(leaves(getattr(value, name), f"{dot}{name}") for name in names))


def test_the_wan_decoder_depends_on_its_shape_and_weights() -> None:
    small = load_profile("tiny", CONFIGS, ["decode.decoder=wan"])
    large = load_profile("tiny", CONFIGS, ["decode.decoder=wan", "architectures.video_vae=wan2.2_vae"])
    other = {**FINGERPRINTS, "video_vae": "f" * 64}
    before = keys_of(make_book(small), FROM_PROMPT)
    assert changed(before, keys_of(make_book(large), FROM_PROMPT)) == FROM_DECODE
    assert changed(before, keys_of(make_book(small, fingerprints=other), FROM_PROMPT)) == FROM_DECODE


@pytest.mark.parametrize(
    ("component", "expected", "with_image"),
    [
        ("text_encoder", FROM_TEXT, FROM_TEXT),
        ("preview", FROM_PREVIEW, FROM_PREVIEW),
        ("refiner", FROM_REFINE, FROM_REFINE),
        ("turbo_vae", FROM_DECODE, FROM_DECODE),
        ("audio_vae", FROM_DECODE, FROM_DECODE),
        ("video_vae", set(), FROM_ENCODE),
    ],
)
def test_weights_change_the_stages_that_use_them(
    component: str, expected: set[StageName], with_image: set[StageName]
) -> None:
    profile = load_profile("tiny", CONFIGS)
    after = make_book(profile, fingerprints={**FINGERPRINTS, component: "f" * 64})
    for clip, wanted in ((FROM_PROMPT, expected), (FROM_IMAGE, with_image)):
        assert changed(keys_of(make_book(profile), clip), keys_of(after, clip)) == wanted


def test_a_changed_weight_file_changes_the_keys(tiny_checkpoint: Path, tmp_path: Path) -> None:
    root = shutil.copytree(tiny_checkpoint, tmp_path / "weights")
    profile = load_profile("tiny", CONFIGS)
    before = keys_of(make_book(profile, fingerprints=CheckpointFolder(root)), FROM_PROMPT)
    flip_byte(root / "refiner" / "model-00002-of-00003.safetensors")
    after = keys_of(make_book(profile, fingerprints=CheckpointFolder(root)), FROM_PROMPT)
    assert changed(before, after) == FROM_REFINE


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"prompt": "an egret"}, {ENHANCE, *FROM_ENCODE}),
        ({"seed": 8}, FROM_PREVIEW),
        ({"figures": (FigureImage(1, Path("a.png"), "b" * 64),)}, FROM_ENCODE),
        ({"figures": (*FROM_IMAGE.figures, FigureImage(2, Path("a.png"), "b" * 64))}, FROM_ENCODE),
        ({"figures": (FigureImage(1, Path("elsewhere/b.jpg"), "a" * 64),)}, set()),
        ({"profile_name": "other", "names": ("x",), "tags": ("y",), "priority": 9}, set()),
    ],
)
def test_inputs_change_exactly_the_stages_that_read_them(change: dict[str, Any], expected: set[StageName]) -> None:
    book = make_book(load_profile("tiny", CONFIGS))
    assert changed(keys_of(book, FROM_IMAGE), keys_of(book, replace(FROM_IMAGE, **change))) == expected


def test_only_images_to_which_something_is_done_tell_the_keys_of_it() -> None:
    """Keys of all others are as before there was a background, but that of the file, which names the profile."""
    white, black = (
        make_book(load_profile("tiny", CONFIGS, overrides))
        for overrides in ((), ("preview.reference_background=[0, 0, 0]",))
    )
    clear = replace(FROM_IMAGE, figures=(replace(FROM_IMAGE.figures[0], treatment=("flattened",)),))
    foreign = replace(FROM_IMAGE, figures=(replace(FROM_IMAGE.figures[0], treatment=("converted",)),))
    assert changed(keys_of(white, FROM_IMAGE), keys_of(black, FROM_IMAGE)) == FROM_MUX
    for one, other in ((clear, foreign), (FROM_IMAGE, clear), (FROM_IMAGE, foreign)):
        assert changed(keys_of(white, one), keys_of(white, other)) == FROM_ENCODE
    assert changed(keys_of(white, clear), keys_of(black, clear)) == FROM_ENCODE
    assert changed(keys_of(white, foreign), keys_of(black, foreign)) == FROM_MUX


def test_a_caption_is_known_by_its_text_not_by_how_it_came_about() -> None:
    profile = load_profile("tiny", CONFIGS)
    off, llm = (keys_of(make_book(profile, mode), FROM_PROMPT, "a caption") for mode in ("off", "llm"))
    assert changed(off, llm) == {ENHANCE}
    assert changed(llm, keys_of(make_book(profile, "llm"), FROM_PROMPT, "another")) == FROM_ENCODE


def test_enhancement_modes_and_models_have_captions_of_their_own() -> None:
    profile = load_profile("tiny", CONFIGS)
    modes = ("off", "offline", "llm", "llm-strict", "llm-then-offline")
    books = [make_book(profile, mode) for mode in modes] + [make_book(profile, "llm", enhancement_model="another")]
    assert len({book.enhance(FROM_PROMPT).key for book in books}) == len(books)
    fallback = make_book(profile, "llm-then-offline").enhance(FROM_PROMPT, "offline")
    assert fallback == make_book(profile, "offline").enhance(FROM_PROMPT)


def test_profiles_that_differ_in_delivery_share_everything_before_it() -> None:
    keys = [
        keys_of(make_book(load_profile("tiny", CONFIGS, overrides)), FROM_IMAGE)
        for overrides in ((), ("delivery.codec=av1", "delivery.crf=40", "delivery.size=[64, 64]"))
    ]
    assert changed(*keys) == {MUX}


def test_a_profile_without_refiner_has_no_such_stage_and_shares_the_preview() -> None:
    with_refiner, without = load_profile("tiny", CONFIGS), load_profile("tiny-preview", CONFIGS)
    assert with_refiner.stages == (ENHANCE, ENCODE, PREVIEW, REFINE, DECODE, MUX)
    assert without.stages == (ENHANCE, ENCODE, PREVIEW, DECODE, MUX)
    keys = [keys_of(make_book(profile), FROM_PROMPT) for profile in (with_refiner, without)]
    assert changed(*keys) == FROM_REFINE


@settings(max_examples=25, deadline=None)
@given(
    names=st.lists(st.text(max_size=8), max_size=3),
    tags=st.lists(st.text(max_size=8), max_size=3),
    priority=st.integers(-99, 99),
    folder=st.sampled_from(["", "/somewhere", "../else"]),
)
def test_nothing_positional_enters_a_key(names: list[str], tags: list[str], priority: int, folder: str) -> None:
    moved = tuple(replace(figure, path=Path(folder) / figure.path) for figure in FROM_IMAGE.figures)
    other = replace(FROM_IMAGE, names=tuple(names), tags=tuple(tags), priority=priority, figures=moved)
    assert other.clip_id == FROM_IMAGE.clip_id
    book = make_book(load_profile("tiny", CONFIGS))
    keys_of(book, replace(FROM_PROMPT, prompt="somebody was here first"))
    assert keys_of(book, other) == keys_of(make_book(load_profile("tiny", CONFIGS)), FROM_IMAGE)


@pytest.mark.parametrize(
    "overrides", [["preview.schedule.guide_until_step=8"], ["preview.quality=lossless"], ["preview.schedule=null"]]
)
def test_a_schedule_that_changes_nothing_is_in_no_recipe(overrides: list[str]) -> None:
    plain, other = load_profile("tiny", CONFIGS), load_profile("tiny", CONFIGS, overrides)
    assert other.digest() == plain.digest()
    assert changed(keys_of(make_book(plain), FROM_PROMPT), keys_of(make_book(other), FROM_PROMPT)) == set()
    config = make_book(other).chain(FROM_PROMPT, "x")[PREVIEW].config
    assert not {"schedule", "quality", "tiers"} & set(config)


def test_a_tier_is_its_resolved_schedule_to_every_recipe() -> None:
    given = ["preview.schedule.guide_until_step=6", "preview.schedule.reuse_steps=[5, 3]"]
    tier, explicit = (load_profile("tiny", CONFIGS, each) for each in (["preview.quality=high"], given))
    assert tier.digest() == explicit.digest()
    recipes = [make_book(profile).chain(FROM_PROMPT, "x")[PREVIEW] for profile in (tier, explicit)]
    assert recipes[0] == recipes[1]
    assert recipes[0].config["schedule"] == {"guide_until_step": 5, "reuse_steps": [3, 5]}
    assert "high" not in str(recipes[0].config)


def test_a_preview_without_guidance_does_not_depend_on_the_negative_prompt() -> None:
    unguided = load_profile("tiny", CONFIGS, ["preview.schedule.guide_until_step=0"])
    keys = [keys_of(make_book(unguided, negative_prompt=text), FROM_PROMPT) for text in ("no fog", "no rain")]
    assert changed(*keys) == {NEGATIVE, *FROM_REFINE}
