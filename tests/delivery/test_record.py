"""What a sidecar holds of a profile is enough to have the same profile again, and nothing that a reader refuses."""

from __future__ import annotations

import json

import pytest

from magi2.config.load import load_profile, override_profile, profile_names
from magi2.config.profile import Profile
from magi2.config.settings import Settings
from magi2.config.strict import validate
from magi2.delivery.again import check_settings
from magi2.delivery.record import recorded_settings
from magi2.media.delivery import PLACEMENT

CONFIGS = Settings().configs
OVERRIDES = (
    (),
    ("delivery.provenance=full", "delivery.label=cn"),
    ("delivery.label={text: 'AI / generated', corner: bottom-right}",),
    ("delivery.target=studio", "delivery.name='{clip}.mp4'", "delivery.sidecar=full"),
    ("text.use_negative_prompt=false", "enhancement.mode=offline"),
)


@pytest.mark.parametrize("name", profile_names(CONFIGS))
@pytest.mark.parametrize("overrides", OVERRIDES, ids=str)
def test_recorded_settings_are_those_of_the_same_profile(name: str, overrides: tuple[str, ...]) -> None:
    profile = load_profile(name, CONFIGS, overrides)
    settings = json.loads(json.dumps(recorded_settings(profile)))
    check_settings(settings)
    again = validate(Profile, {**settings, "name": name}, place="the sidecar's settings")
    assert again.digest() == profile.digest()
    placed = {key: getattr(again.delivery, key) for key in PLACEMENT}
    assert placed == {"target": None, "name": None, "sidecar": "standard"}


def test_watermark_is_named_by_whoever_renders_again() -> None:
    profile = load_profile("tiny", CONFIGS, ("delivery.watermark=example",))
    settings = recorded_settings(profile)
    assert "watermark" not in settings["delivery"]
    again = validate(Profile, {**settings, "name": "tiny"}, place="the sidecar's settings")
    assert again.digest() != profile.digest()
    assert override_profile(again, ["delivery.watermark=example"]).digest() == profile.digest()
