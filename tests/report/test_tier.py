"""Reports and pages say of which tier a clip is, and what share of the evaluations that takes."""

from __future__ import annotations

import pytest

from magi2.config.load import load_profile
from magi2.config.profile import tier_text
from tests.render_helpers import CONFIGS


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ([], "lossless, 100% of the evaluations"),
        (["preview.quality=high"], "high, 62% of the evaluations"),
        (["preview.schedule.guide_until_step=0"], "schedule, 50% of the evaluations"),
    ],
)
def test_a_stored_profile_tells_its_tier_and_share(overrides: list[str], text: str) -> None:
    assert tier_text(load_profile("tiny", CONFIGS, overrides).model_dump(mode="json")) == text


def test_settings_of_an_older_version_tell_nothing() -> None:
    assert tier_text({"name": "tiny", "refiner": None}) is None
    assert tier_text({"preview": {"steps": 8}}) == "lossless, 100% of the evaluations"
