"""Sizes that do not go together, that no encoder takes or that no card holds are the plan's refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from magi2.batches.size_checks import require_encodable, require_one_aspect, require_room, require_stretch_is_wanted
from magi2.batches.static_checks import Site, check_profiles
from magi2.checkpoints.layout import CheckpointFolder
from magi2.config.load import load_profile, profile_names
from magi2.config.settings import Settings
from magi2.errors import ConfigError
from magi2.recipes.book import mux_recipe
from tests.render_helpers import CONFIGS

PORTRAIT = ("preview.width=64", "preview.height=128")


@pytest.mark.parametrize("name", profile_names(CONFIGS))
def test_every_shipped_profile_has_sizes_that_go_together(name: str) -> None:
    profile = load_profile(name, CONFIGS)
    require_one_aspect(profile)
    require_stretch_is_wanted(profile)
    require_encodable(profile)


@pytest.mark.parametrize("fit", ["scale", "nearest"])
@pytest.mark.parametrize(
    ("overrides", "aspects"),
    [
        (PORTRAIT, r"64x128 \(1:2\) to 1024x512 \(2:1\)"),
        (("delivery.size=[512, 512]",), r"128x64 \(2:1\) to 512x512 \(1:1\)"),
        (("delivery.size=[1080, 512]",), r"128x64 \(2:1\) to 1080x512 \(135:64\)"),
    ],
)
def test_another_aspect_is_refused_by_both_until_stretch_is_asked_for(
    fit: str, overrides: tuple[str, ...], aspects: str
) -> None:
    """Before, a portrait preview was delivered as landscape without a word."""
    overrides = (*overrides, f"delivery.fit={fit}")
    with pytest.raises(ConfigError, match=rf"delivery\.fit {fit} stretches {aspects} .*delivery\.stretch=true"):
        require_stretch_is_wanted(load_profile("demo", CONFIGS, overrides))
    require_stretch_is_wanted(load_profile("demo", CONFIGS, [*overrides, "delivery.stretch=true"]))


@pytest.mark.parametrize("size", ["[1920, 1080]", "[1280, 720]", "[854, 480]", "[3840, 2160]"])
@pytest.mark.parametrize("name", ["272p", "540p", "1080p"])
def test_what_rounding_to_whole_latents_costs_is_no_stretch(name: str, size: str) -> None:
    require_stretch_is_wanted(load_profile(name, CONFIGS, [f"delivery.size={size}", "delivery.fit=scale"]))


@pytest.mark.parametrize("fit", ["cover", "contain"])
def test_fits_that_keep_the_aspect_reach_any_size(fit: str) -> None:
    profile = load_profile("demo", CONFIGS, [*PORTRAIT, f"delivery.fit={fit}", "delivery.size=[1080, 1080]"])
    require_stretch_is_wanted(profile)
    assert profile.delivered_size == (1080, 1080)


def test_leave_to_stretch_makes_no_other_file_and_no_other_clip() -> None:
    plain, allowed = (load_profile("demo", CONFIGS, each) for each in ([], ["delivery.stretch=true"]))
    assert allowed.digest() == plain.digest()
    assert mux_recipe(allowed, {}, {}, 1, "0" * 64) == mux_recipe(plain, {}, {}, 1, "0" * 64)


@pytest.mark.parametrize("sizes", [PORTRAIT, ("refiner.width=128", "refiner.height=128")])
def test_refiner_that_would_stretch_its_preview_is_refused_with_both_aspects(sizes: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"refiner makes .*\(\d+:\d+\) of previews of .*\(\d+:\d+\)"):
        require_one_aspect(load_profile("tiny", CONFIGS, sizes))


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("delivery.size=[62, 32]", "delivery.codec=hevc"), "62x32 as hevc, sides are 64 to 8192"),
        (("delivery.size=[8194, 4096]",), "8194x4096 as h264, sides are 2 to 8192"),
    ],
)
def test_delivery_that_no_encoder_takes_is_refused(overrides: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        require_encodable(load_profile("tiny-preview", CONFIGS, [*overrides, "delivery.fit=scale"]))


def test_sizes_that_the_named_cards_do_not_hold_are_refused_with_need_and_limit() -> None:
    fits, large = (
        load_profile(name, CONFIGS, sizes)
        for name, sizes in (
            ("1080p-portrait", []),
            ("540p", ["preview.width=3072", "preview.height=3072"]),
        )
    )
    cards = Settings(layout="sp8", card_memory_gib=80.0)
    require_room(fits, cards)
    with pytest.raises(ConfigError, match=r"layout sp8\.cfg1\.ep8 needs .*1179648 video .* a card has 80\.0 GiB"):
        require_room(large, cards)
    require_room(large, Settings(layout="sp8"))  # nothing is known of the cards


def test_a_plan_asks_about_sizes(tiny_checkpoint: Path) -> None:
    site = Site(Settings(ckpt_root=tiny_checkpoint), CheckpointFolder(tiny_checkpoint))
    check_profiles([load_profile("tiny-portrait", CONFIGS)], [], site)
    for overrides in (PORTRAIT, ("delivery.size=[256, 256]", "delivery.fit=scale"), ("delivery.size=[9000, 4500]",)):
        fit = [] if "delivery.fit=scale" in overrides else ["delivery.fit=cover"]
        with pytest.raises(ConfigError, match="profile tiny:"):
            check_profiles([load_profile("tiny", CONFIGS, [*overrides, *fit])], [], site)
