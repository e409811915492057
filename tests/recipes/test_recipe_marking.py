"""What of the marks counts in a recipe: all that is configured and written, and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import ImageFont

from magi2.config.load import load_profile
from magi2.config.profile import Profile, settings_digest
from magi2.config.settings import Settings
from magi2.errors import ConfigError, InputError
from magi2.media.delivery import BESIDE_ENCODING, METADATA_LIMIT_BYTES
from magi2.media.marks.aigc import parse_aigc
from magi2.media.watermarks import InstalledWatermark
from magi2.recipes.marking import Marking, check_texts, clip_tags, marking_of
from magi2.types import StageName
from tests.recipes.recipe_books import FROM_PROMPT, changed, keys_of, make_book
from tests.render_helpers import CONFIGS

MUX = StageName.MUX


def profile_with(provenance: str) -> Profile:
    return load_profile("tiny", CONFIGS, [f"delivery.provenance={provenance}"])


@pytest.mark.parametrize("provenance", ["full", "ids", "none"])
def test_a_producer_changes_mux_and_nothing_before_it(provenance: str) -> None:
    profile = profile_with(provenance)
    nobody, studio = (keys_of(make_book(profile, marking=Marking(name)), FROM_PROMPT) for name in ("", "A studio"))
    assert changed(nobody, studio) == {MUX}


@pytest.mark.parametrize(("provenance", "differs"), [("full", True), ("ids", False), ("none", False)])
def test_prompts_with_equal_captions_share_a_file_unless_it_holds_them(provenance: str, differs: bool) -> None:
    book = make_book(profile_with(provenance), "offline")
    clips = (FROM_PROMPT, replace(FROM_PROMPT, prompt="the same in other words"))
    recipes = [book.chain(clip, "one caption") for clip in clips]
    assert recipes[0][StageName.DECODE] == recipes[1][StageName.DECODE]
    assert (recipes[0][MUX] != recipes[1][MUX]) is differs


def test_profiles_of_before_there_were_marks_keep_their_digest() -> None:
    profile = load_profile("tiny", CONFIGS)
    settings = profile.model_dump(mode="json")
    settings["delivery"] = {name: value for name, value in settings["delivery"].items() if name not in BESIDE_ENCODING}
    assert settings_digest(settings) == profile.digest() == profile_with("ids").digest()
    assert profile.digest() != profile_with("none").digest() != profile_with("full").digest()


@pytest.mark.parametrize(
    ("provenance", "names"),
    [
        ("none", set()),
        ("ids", {"magi2_artifact", "magi2_decoded_from", "magi2_profile", "magi2_seed"}),
        ("full", {"magi2_artifact", "magi2_decoded_from", "magi2_profile", "magi2_seed", "magi2_record"}),
    ],
)
def test_a_file_tells_of_its_making_what_the_profile_allows(provenance: str, names: set[str]) -> None:
    profile = profile_with(provenance)
    recipe = make_book(profile).chain(FROM_PROMPT, "its caption")[MUX]
    tags = clip_tags(profile, Marking("A studio"), recipe, FROM_PROMPT.prompt, "its caption")
    assert set(tags) == {"AIGC", "comment", *names}
    entry = parse_aigc(tags["AIGC"])
    assert entry is not None
    assert (entry["Label"], entry["ContentProducer"], entry["ProduceID"]) == ("1", "A studio", recipe.key)
    if provenance == "full":
        record = json.loads(tags["magi2_record"])
        assert (record["prompt"], record["caption"]) == (FROM_PROMPT.prompt, "its caption")
        assert record["settings"]["preview"]["steps"] == profile.preview.steps
        assert "name" not in record["settings"], "two profiles of one digest make the same file"


def test_texts_that_no_entry_holds_are_refused_where_they_are_written() -> None:
    long = "é" * (METADATA_LIMIT_BYTES // 4)
    check_texts(profile_with("ids"), long, long)
    check_texts(profile_with("full"), long, "a caption")
    with pytest.raises(InputError, match=r"provenance full.*at most 100000.*ids"):
        check_texts(profile_with("full"), long, long)


def test_a_label_that_cannot_be_set_stops_the_plan_and_its_font_counts(tmp_path: Path) -> None:
    profile = load_profile("tiny", CONFIGS, ["delivery.label={text: AI, size: 0.1}"])
    with pytest.raises(ConfigError, match="MAGI2_LABEL_FONT"):
        marking_of(profile, Settings(label_font=tmp_path / "absent.ttf"))
    face = ImageFont.load_default(20)
    assert isinstance(face, ImageFont.FreeTypeFont)
    keys = []
    for tail in (b"", b"another"):
        (tmp_path / "font.ttf").write_bytes(face.font_bytes + tail)
        marking = marking_of(profile, Settings(label_font=tmp_path / "font.ttf"))
        keys.append(keys_of(make_book(profile, marking=marking), FROM_PROMPT))
    assert changed(*keys) == {MUX}
    unlabelled = load_profile("tiny", CONFIGS)
    assert marking_of(unlabelled, Settings(label_font=tmp_path / "absent.ttf")) == Marking()


def test_a_watermark_that_is_not_allowed_stops_the_plan_and_its_code_counts() -> None:
    profile = load_profile("tiny", CONFIGS, ["delivery.watermark=some-name"])
    with pytest.raises(ConfigError, match="MAGI2_WATERMARKS allows none"):
        marking_of(profile, Settings())
    with pytest.raises(ConfigError, match="comes from no package"):
        marking_of(profile, Settings.from_environment({"MAGI2_WATERMARKS": "other, some-name"}))
    keys = [
        keys_of(make_book(profile, marking=Marking(watermark=InstalledWatermark(*known))), FROM_PROMPT)
        for known in (("some-name", "1", "a" * 64), ("some-name", "2", "a" * 64), ("some-name", "1", "b" * 64))
    ]
    assert changed(keys[0], keys[1]) == changed(keys[0], keys[2]) == {MUX}
