from __future__ import annotations

import json
import re
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from magi2.config.load import experimental_names, load_negative_prompt, load_profile, override_profile, profile_names
from magi2.config.profile import Profile
from magi2.config.profiles import Profiles
from magi2.config.settings import Settings
from magi2.errors import ConfigError, Magi2Error
from magi2.recipes.book import mux_recipe

CONFIGS = Settings().configs


def write_profile(folder: Path, text: str, name: str = "mine") -> str:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return str(path)


def test_published_profiles_have_the_published_sizes_and_steps() -> None:
    sizes = {
        name: (profile.preview.width, profile.preview.height, profile.refiner)
        for name in ("272p", "540p")
        for profile in [load_profile(name, CONFIGS)]
    }
    assert sizes == {"272p": (448, 256, None), "540p": (896, 512, None)}
    full = load_profile("1080p", CONFIGS)
    assert (full.preview.width, full.preview.height, full.preview.steps, full.preview.shift) == (896, 512, 100, 7.0)
    assert full.refiner is not None
    refiner = full.refiner
    assert (refiner.width, refiner.height, refiner.steps, refiner.shift) == (1920, 1088, 5, 5.0)
    assert (refiner.guidance_scale, refiner.noise_index) == (2.0, 220)
    assert (full.delivery.size, full.delivery.fit) == ((1920, 1080), "crop")


def test_sizes_that_are_not_published_call_themselves_experimental_and_the_others_do_not() -> None:
    published = {"preview": {(448, 256), (896, 512)}, "refiner": {(1920, 1088)}}
    for name in profile_names(CONFIGS):
        profile = load_profile(name, CONFIGS)
        if profile.architectures == load_profile("540p", CONFIGS).architectures:
            refined = profile.refiner is None or (profile.refiner.width, profile.refiner.height) in published["refiner"]
            known = refined and (profile.preview.width, profile.preview.height) in published["preview"]
            assert profile.experimental is not known, name
    assert {"540p-portrait", "540p-square", "1080p-portrait", "tiny-portrait"} <= set(experimental_names(CONFIGS))


def test_a_profile_that_is_not_experimental_says_nothing_of_it_and_the_word_makes_no_other_clip() -> None:
    plain, called_so = (load_profile("tiny", CONFIGS, each) for each in ([], ["experimental=true"]))
    assert "experimental" not in plain.model_dump() and called_so.model_dump()["experimental"] is True
    assert called_so.digest() == plain.digest()


def test_values_that_upstream_gets_wrong_when_absent_are_the_shipped_ones() -> None:
    preview = load_profile("272p", CONFIGS).preview
    assert preview.shift == 7.0
    assert preview.use_ref_for_uncond is True
    assert asdict(preview.guidance) == {
        "video_txt_guidance_scale": 5.0,
        "audio_txt_guidance_scale": 7.0,
        "use_cfg_trick": False,
        "cfg_trick_start_frame": 13,
        "cfg_trick_value": 2.0,
        "use_dynamic_cfg": False,
        "dynamic_cfg_start_t": 500,
        "dynamic_cfg_cutoff_value": 2.0,
        "use_skimmed_cfg_linear": False,
        "skimmed_cfg_scale": 3.0,
        "cfg_rescale": 0.0,
    }
    text = load_profile("272p", CONFIGS).text
    assert (text.use_negative_prompt, text.max_tokens, text.on_overflow) == (True, 7000, "refuse")


def test_published_exact_changes_of_1080p_what_keeps_clips_from_being_the_published_ones() -> None:
    exact, usual = (load_profile(name, CONFIGS).model_dump(mode="json") for name in ("published-exact", "1080p"))
    changed = {key: exact[key] for key in exact if exact[key] != usual[key] and key not in ("name", "description")}
    assert changed == {
        "noise_device": "accelerator",
        "text": usual["text"] | {"negative_prompt": "negative_prompt_published.txt"},
        "enhancement": usual["enhancement"] | {"mode": "off"},
        "decode": usual["decode"] | {"rounding": "truncate"},
        "delivery": usual["delivery"] | {"size": [1920, 1088]},
    }
    with pytest.raises(ConfigError, match=r"negative_prompt_published\.txt") as refused:
        load_negative_prompt(load_profile("published-exact", CONFIGS), CONFIGS)
    assert "text.negative_prompt" in (refused.value.hint or "")


def test_published_architectures_are_complete_in_their_files() -> None:
    architectures = load_profile("1080p", CONFIGS).architectures
    assert architectures == type(architectures)(
        preview=type(architectures.preview)(),
        refiner=type(architectures.refiner)(),
        video_vae=type(architectures.video_vae)(),
    )
    for name, kind in (("preview", architectures.preview), ("refiner", architectures.refiner)):
        written = json.loads((CONFIGS / "models" / f"{name}.json").read_text())
        assert set(written) >= {field.name for field in fields(kind)} - {"layer_activation_types"}


def test_every_profile_loads_and_has_its_own_digest() -> None:
    names = profile_names(CONFIGS)
    assert {"272p", "540p", "1080p", "tiny"} <= set(names)
    digests = {load_profile(name, CONFIGS).digest() for name in names}
    assert len(digests) == len(names)


def test_where_a_clip_goes_makes_no_other_clip_and_no_other_file() -> None:
    plain, placed = (
        load_profile("tiny", CONFIGS, overrides)
        for overrides in ([], ["delivery.target=studio", "delivery.name='{clip}.mp4'"])
    )
    assert placed.delivery.target == "studio" and placed.digest() == plain.digest()
    assert mux_recipe(placed, {}, {}, 1, "0" * 64) == mux_recipe(plain, {}, {}, 1, "0" * 64)


@pytest.mark.parametrize(
    "override", ["delivery.target=/mnt/studio", "delivery.target=s3://b/", "delivery.name='../{name}.mp4'"]
)
def test_a_profile_names_a_target_and_a_relative_name_alone(override: str) -> None:
    with pytest.raises(ConfigError, match="delivery"):
        load_profile("tiny", CONFIGS, [override])


def test_digest_ignores_name_description_and_what_is_expected_but_no_setting() -> None:
    base = load_profile("tiny", CONFIGS)
    assert load_profile("tiny", CONFIGS, ["description=other", "name=other"]).digest() == base.digest()
    assert load_profile("tiny", CONFIGS, ["quality.expect.motion=any"]).digest() == base.digest()
    assert load_profile("tiny", CONFIGS, ["preview.steps=9"]).digest() != base.digest()
    assert load_profile("tiny", CONFIGS, ["architectures.preview=preview"]).digest() != base.digest()


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("preview.stepz=9", "steps"),
        ("preview.guidance.video_guidance_scale=3", "video_txt_guidance_scale"),
        ("refiner.noise_idx=3", "noise_index"),
        ("delivry.codec=h264", "delivery"),
    ],
)
def test_unknown_keys_are_refused_with_the_nearest_valid_one(override: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{nearest}'"):
        load_profile("tiny", CONFIGS, [override])


@pytest.mark.parametrize("network", ["preview", "refiner", "video_vae"])
def test_unknown_keys_of_an_architecture_are_refused(tmp_path: Path, network: str) -> None:
    text = f"extends: {CONFIGS / 'profiles' / 'tiny.yaml'}\narchitectures:\n  {network}: {{num_layrs: 3}}\n"
    with pytest.raises(ConfigError, match=rf"unknown key 'architectures\.{network}\.num_layrs'"):
        load_profile(write_profile(tmp_path, text), CONFIGS)


def test_ten_seconds_is_the_only_duration() -> None:
    with pytest.raises(ConfigError, match="clips of 10 s and makes no other length, got 8"):
        load_profile("tiny", CONFIGS, ["duration_s=8"])


@pytest.mark.parametrize("override", ["preview.width=130", "refiner.height=1080", "preview.height=0"])
def test_sizes_that_are_no_whole_latents_are_refused_not_floored(override: str) -> None:
    with pytest.raises(ConfigError, match=override.partition("=")[0]):
        load_profile("1080p", CONFIGS, [override])


def test_a_delivery_larger_than_the_picture_cannot_be_cropped() -> None:
    with pytest.raises(ConfigError, match="cannot be cropped from 256x128"):
        load_profile("tiny", CONFIGS, ["delivery.size=[512, 256]"])
    scaled = load_profile("tiny", CONFIGS, ["delivery.size=[512, 256]", "delivery.fit=scale"])
    assert scaled.delivery.size == (512, 256)


@pytest.mark.parametrize("override", ["delivery.crf=60", "delivery.preset=quick", "delivery.size=[127, 64]"])
def test_a_delivery_that_no_encoder_takes_is_refused(override: str) -> None:
    with pytest.raises(Magi2Error, match="delivery"):
        load_profile("tiny", CONFIGS, [override])


def test_extends_merges_mappings_and_replaces_everything_else(tmp_path: Path) -> None:
    base = write_profile(tmp_path, f"extends: {CONFIGS / 'profiles' / 'tiny.yaml'}\nrefiner: null\n", "base")
    profile = load_profile(write_profile(tmp_path, "extends: base\npreview: {steps: 3}\n", "child"), CONFIGS)
    assert profile.name == "child"
    assert profile.refiner is None
    assert (profile.preview.steps, profile.preview.width) == (3, 128)
    assert load_profile(base, CONFIGS).name == "base"


@pytest.mark.parametrize(
    "parent", ["nobody", "x" * 300, "x" * 300 + ".yaml", "a/" * 3_000, {"x": 1}, ["tiny"], 7, True]
)
def test_extends_that_names_no_profile_is_an_error(parent: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="extends"):
        load_profile(write_profile(tmp_path, json.dumps({"extends": parent}), "a"), CONFIGS)


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + ".yaml", "a/" * 3_000 + ".yaml", "\0.yaml"])
def test_a_profile_whose_name_no_file_can_have_is_unknown(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown profile"):
        load_profile(name, CONFIGS)


def test_extends_that_goes_in_a_circle_is_an_error(tmp_path: Path) -> None:
    write_profile(tmp_path, f"extends: ../{tmp_path.name}/b\n", "a")
    with pytest.raises(ConfigError, match="extends itself"):
        load_profile(write_profile(tmp_path, "extends: a\n", "b"), CONFIGS)


def test_a_change_to_a_section_that_is_switched_off_leaves_the_profile_as_it_is() -> None:
    without = load_profile("tiny-preview", CONFIGS)
    assert override_profile(without, ["refiner.steps=8"]) == without
    assert override_profile(load_profile("tiny", CONFIGS), ["refiner.steps=8"]).refiner.steps == 8  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="unknown key 'refinr'"):
        override_profile(without, ["refinr.steps=8"])


def test_an_override_reaches_those_profiles_of_a_batch_that_have_its_section() -> None:
    profiles = Profiles(CONFIGS, "tiny", ["refiner.steps=1", "preview.steps=3"])
    with_refiner, without = profiles(None), profiles("tiny-preview")
    assert with_refiner.refiner is not None and with_refiner.refiner.steps == 1
    assert without == load_profile("tiny-preview", CONFIGS, ["preview.steps=3"])
    profiles.require_all_applied([without, with_refiner])


def test_an_override_that_reaches_no_profile_of_a_batch_is_refused() -> None:
    profiles = Profiles(CONFIGS, "tiny", ["refiner.steps=1"])
    profiles(None)
    with pytest.raises(ConfigError, match=r"'refiner.steps=1' .* every profile used: tiny-preview"):
        profiles.require_all_applied([profiles("tiny-preview")])
    with pytest.raises(ConfigError, match="unknown key 'refinr'"):
        Profiles(CONFIGS, "tiny", ["refinr.steps=1"])("tiny-preview")


def test_an_unknown_profile_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown profile '1080'.*'1080p'"):
        load_profile("1080", CONFIGS)


def test_a_yaml_profile_that_is_broken_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mine\.yaml: unreadable"):
        load_profile(write_profile(tmp_path, "preview: [1"), CONFIGS)


def test_the_negative_prompt_is_a_file_of_ours_and_can_be_another(tmp_path: Path) -> None:
    ours = load_negative_prompt(load_profile("tiny", CONFIGS), CONFIGS)
    assert ours is not None and len(ours) > 200
    other = tmp_path / "negative.txt"
    other.write_text("no fog\n")
    assert load_negative_prompt(load_profile("tiny", CONFIGS, [f"text.negative_prompt={other}"]), CONFIGS) == "no fog"
    assert load_negative_prompt(load_profile("tiny", CONFIGS, ["text.use_negative_prompt=false"]), CONFIGS) is None
    other.write_text(" no\u200b  fog\r\n", encoding="utf-16")
    assert load_negative_prompt(load_profile("tiny", CONFIGS, [f"text.negative_prompt={other}"]), CONFIGS) == "no fog"
    other.write_text("\u200b\n")
    with pytest.raises(ConfigError, match=r"negative prompt file .*negative.txt shows nothing"):
        load_negative_prompt(load_profile("tiny", CONFIGS, [f"text.negative_prompt={other}"]), CONFIGS)
    with pytest.raises(ConfigError, match="negative prompt file"):
        load_negative_prompt(load_profile("tiny", CONFIGS, ["text.negative_prompt=absent.txt"]), CONFIGS)


def test_a_label_may_be_named_or_written_out_also_when_an_earlier_batch_runs_again() -> None:
    plain, named = (load_profile("tiny", CONFIGS, changes) for changes in ((), ("delivery.label=cn",)))
    assert plain.delivery.label is None and named.delivery.label is not None
    assert named.delivery.label.text == "AI生成"
    again = override_profile(plain, ["delivery.label=cn"])
    assert again.digest() == named.digest() != plain.digest()
    longer = override_profile(named, ["delivery.label.seconds=5"]).delivery.label
    assert longer is not None and (longer.text, longer.seconds) == ("AI生成", 5)
    with pytest.raises(ConfigError, match=r"unknown label 'ch'.*did you mean 'cn'"):
        load_profile("tiny", CONFIGS, ["delivery.label=ch"])
    with pytest.raises(ConfigError, match=r"delivery\.label\.colour"):
        load_profile("tiny", CONFIGS, ["delivery.label={text: AI, colour: red}"])


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (
            ["preview.quality=high", "preview.schedule.guide_until_step=3"],
            "quality high names a schedule",
        ),
        (["preview.quality=lossless", "preview.schedule.guide_until_step=3"], "quality lossless names a schedule"),
        (["preview.quality=high", "preview.steps=9"], "quality high has no schedule for 9 steps, it is known for 8"),
        (["preview.quality=best"], "lossless"),
        (["preview.schedule.reuse_steps=[0]"], "reuse_steps has 0: before the first step"),
        (["preview.schedule.reuse_steps=[1]"], "the first 2 steps are always evaluated"),
        (["preview.schedule.reuse_steps=[8]"], "of 8 steps those from 2 to 7 may"),
        (["preview.schedule.reuse_steps=[3, 4, 5]"], "at most 2 steps in a row"),
        (["preview.schedule.guide_until_step=9"], "must be from 0 .no guidance. to 8"),
        (["preview.schedule.guide_until=3"], "did you mean 'guide_until_step'"),
        (["preview.tiers.high.8.reuse_step=[3]"], "unknown key 'preview.tiers.high.8.reuse_step'"),
        (["preview.tiers.high.8.reuse_steps=[1]"], "tiers.high.8: reuse_steps has 1"),
        (["preview.tiers=tinny"], "unknown tiers 'tinny'"),
    ],
)
def test_wrong_schedules_and_tiers_are_refused_with_the_reason(overrides: list[str], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_profile("tiny", CONFIGS, overrides)
    assert re.search(reason, f"{refused.value} {refused.value.hint}")


def test_a_stored_profile_changes_its_tier_without_the_files_of_tiers() -> None:
    plain = load_profile("tiny", CONFIGS)
    high, draft = (override_profile(plain, [f"preview.quality={quality}"]) for quality in ("high", "draft"))
    assert draft.preview.evaluated.share(8) < high.preview.evaluated.share(8) < 1
    assert Profile.model_validate(json.loads(draft.model_dump_json())) == draft
    assert override_profile(draft, ["preview.quality=lossless"]).digest() == plain.digest() != draft.digest()


def test_every_published_profile_and_the_demo_have_both_tiers_for_their_steps() -> None:
    limits = {"high": {20: 0.6, 100: 0.5}, "draft": {20: 0.4, 100: 0.25}}
    for name in ("272p", "540p", "1080p", "demo", "demo-refined"):
        for quality, shares in limits.items():
            preview = load_profile(name, CONFIGS, [f"preview.quality={quality}"]).preview
            assert preview.evaluated.share(preview.steps) <= shares[preview.steps], (name, quality)
