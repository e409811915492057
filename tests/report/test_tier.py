"""Reports and pages say of which tier a clip is, and what share of the evaluations that takes."""

from __future__ import annotations

import pytest

from magi2.artifacts.local import LocalStore
from magi2.config.load import load_profile
from magi2.config.profile import settings_digest, tier_text
from magi2.report.build import build_report
from magi2.report.markdown import to_markdown
from tests.render_helpers import CONFIGS
from tests.report_samples import NO_REFINER, clip, planned, run_stages


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


def test_the_report_and_its_text_name_it(store: LocalStore) -> None:
    plan = planned(store, [clip(1), clip(2, NO_REFINER)])
    run_stages(store, plan, {})
    report = build_report(store, plan.batch_id)
    assert {each.tier for each in report.failed + report.done} == {"lossless, 100% of the evaluations"}
    assert "- 2 clips of tier lossless, 100% of the evaluations" in to_markdown(report)


def test_settings_of_an_older_version_tell_nothing() -> None:
    assert tier_text({"name": "tiny", "refiner": None}) is None
    assert tier_text({"preview": {"steps": 8}}) == "lossless, 100% of the evaluations"


@pytest.mark.parametrize("spoilt", ["often", {"reuse_steps": 3}, {"reuse_steps": [1]}, {"guide_until_step": "x"}, [3]])
def test_a_spoilt_schedule_has_no_share_and_a_digest_of_its_own(spoilt: object) -> None:
    settings = load_profile("tiny", CONFIGS).model_dump(mode="json")
    digest = settings_digest(settings)
    settings["preview"]["schedule"] = spoilt
    assert settings_digest(settings) != digest
    assert tier_text({"preview": {"steps": 8, "schedule": "often"}}) is None
