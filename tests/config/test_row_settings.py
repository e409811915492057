"""What a row may set of its profile: what the schema marks, by its type, and nothing of paths, code or processes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from magi2.config.load import load_profile, override_profile
from magi2.config.profile import Profile
from magi2.config.row_settings import derived_profile, keys_of_profiles, settings_of_rows
from magi2.errors import InputError, Magi2Error
from tests.render_helpers import CONFIGS

TINY = load_profile("tiny", CONFIGS)
NEVER = (
    *("name", "description", "changed", "duration_s", "compute_dtype", "compute.weights", "noise_device"),
    *(
        "text.negative_prompt",
        "text.max_tokens",
        "enhancement.mode",
        "preview.tiers",
        "preview.width",
        "preview.height",
    ),
    *("refiner.width", "refiner.height", "decode.decoder", "delivery.threads", "delivery.size", "delivery.watermark"),
    *("delivery.label", "delivery.provenance", "delivery.sidecar", "delivery.audio_bitrate_kbps"),
)


def derived(profile: Profile = TINY, **settings: Any) -> Profile:
    """`profile` with settings whose dots are written as two underscores."""
    named = {key.replace("__", "."): value for key, value in settings.items()}
    return derived_profile(profile, {key: settings_of_rows()[key].read(value) for key, value in named.items()})


def test_rows_set_what_the_schema_marks_and_never_paths_code_endpoints_or_processes() -> None:
    known = settings_of_rows()
    assert not [key for key in known if key.startswith(NEVER) or key.startswith("architectures")]
    assert {"preview.steps", "preview.guidance.cfg_rescale", "refiner.steps", "text.negative_text"} <= set(known)
    assert {"preview.quality", "preview.schedule.reuse_steps", "delivery.crf"} <= set(known)
    assert set(known) < keys_of_profiles() and {"preview", "preview.guidance", *NEVER} <= keys_of_profiles()


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("preview.steps", " 4 ", 4),
        ("preview.shift", "2.5", 2.5),
        ("preview.guidance.use_cfg_trick", "true", True),
        ("preview.quality", "draft", "draft"),
        ("preview.schedule.guide_until_step", "3", 3),
        ("preview.schedule.reuse_steps", "3 5", (3, 5)),
        ("preview.schedule.reuse_steps", "3", (3,)),
        ("preview.reference_background", "0 128 255", (0, 128, 255)),
        ("preview.reference_background", "refuse", "refuse"),
        ("text.negative_text", "no  fog", "no  fog"),
    ],
)
def test_a_cell_is_read_by_the_type_of_its_key(key: str, text: str, value: object) -> None:
    assert settings_of_rows()[key].read(text) == value
    plain = list(value) if isinstance(value, tuple) else value
    assert settings_of_rows()[key].read(plain) == value


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("preview.steps", 0, "greater than or equal to 1"),
        ("preview.steps", "1001", "less than or equal to 1000"),
        ("preview.steps", "four", "integer"),
        ("preview.steps", True, "integer"),
        ("preview.steps", 4.0, "integer"),
        ("preview.steps", [4], "integer"),
        ("preview.shift", "inf", "no number to compute with"),
        ("preview.shift", "nan", "greater than 0"),
        ("preview.shift", False, "number"),
        ("preview.quality", "drft", "'lossless', 'high' or 'draft'"),
        ("preview.use_ref_for_uncond", 1, "boolean"),
        ("preview.schedule.reuse_steps", [3, "x"], "integer"),
        ("preview.reference_background", "1 2 300", "less than or equal to 255"),
        ("text.negative_text", 4, "string"),
        ("text.negative_text", "x" * 100_001, "at most 100000 characters"),
    ],
)
def test_a_value_of_another_type_or_beyond_its_limit_is_refused_with_key_value_and_limit(
    key: str, value: object, reason: str
) -> None:
    with pytest.raises(InputError) as refused:
        settings_of_rows()[key].read(value)
    assert str(refused.value).startswith(f"{key} is ") and reason in str(refused.value)


def test_a_derived_profile_has_the_digest_of_a_profile_that_says_the_same() -> None:
    profile = derived(preview__steps=4, preview__guidance__cfg_rescale=0.5)
    said = load_profile("tiny", CONFIGS, ["preview.steps=4", "preview.guidance.cfg_rescale=0.5"])
    assert profile.digest() == said.digest() != TINY.digest()
    assert (profile.name, profile.title) == ("tiny", "tiny + preview.steps=4, preview.guidance.cfg_rescale=0.5")
    assert Profile.model_validate(profile.model_dump(mode="json")).title == profile.title


def test_the_table_in_the_docs_has_every_setting_of_rows_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "rows.md").read_text(encoding="utf-8")
    table = page.partition("## Settings of the profile")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([a-z_.]+)` \|", table, re.MULTILINE) == list(settings_of_rows())


def test_a_value_that_is_the_profiles_own_changes_nothing() -> None:
    assert derived(preview__steps=TINY.preview.steps, refiner__shift=5) is TINY
    assert derived(preview__quality="lossless", text__use_negative_prompt="yes") is TINY
    assert derived(preview__schedule__reuse_steps=[]) is TINY
    assert derived(preview__steps=4, refiner__steps=TINY.refiner.steps).title == "tiny + preview.steps=4"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"preview__quality": "draft", "preview__steps": 7}, "has no schedule for 7 steps"),
        ({"preview__quality": "draft", "preview__schedule__guide_until_step": 3}, "give one of them"),
        ({"preview__schedule__guide_until_step": 9}, "guide_until_step is 9"),
        ({"preview__guidance__cfg_rescale": -1}, "cfg_rescale is -1.0"),
        ({"delivery__crf": 52}, "crf 52"),
        ({"delivery__preset": "warp"}, "preset 'warp'"),
        ({"text__negative_text": "fog", "text__use_negative_prompt": False}, "use_negative_prompt is off"),
        ({"text__negative_text": "\u200b"}, "shows nothing"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(Magi2Error, match=reason):
        derived(**settings)


def test_a_row_switches_no_section_on() -> None:
    without = load_profile("tiny-preview", CONFIGS)
    with pytest.raises(InputError, match=r"refiner\.steps: profile tiny-preview has no refiner"):
        derived(without, refiner__steps=3)


def test_profiles_without_a_text_of_their_own_keep_their_digests() -> None:
    assert "negative_text" not in TINY.model_dump()["text"] and "changed" not in TINY.model_dump()


def test_a_later_override_goes_before_what_a_row_said() -> None:
    row = derived(preview__steps=4, text__negative_text="fog")
    assert override_profile(row, ["preview.steps=5"]).title == "tiny + text.negative_text=fog"
    assert override_profile(row, ["text.negative_prompt=negative_prompt_demo.txt"]).title == "tiny + preview.steps=4"
    off = override_profile(row, ["text.use_negative_prompt=false", "preview.steps=8"])
    assert (off.title, off.text.negative_text) == ("tiny", None)
    assert override_profile(row, ["refiner.steps=9"]).title == row.title
