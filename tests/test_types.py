"""What stages there are, in which order, and which of them a profile has."""

from __future__ import annotations

import pytest

from magi2.config.load import load_profile
from magi2.types import ARTIFACT_FOLDERS, ARTIFACT_STAGES, NEGATIVE, StageName, clip_stages, profile_stages
from tests.render_helpers import CONFIGS


def test_stages_are_those_that_a_clip_passes_in_order() -> None:
    assert list(StageName) == ["enhance", "encode", "preview", "refine", "decode", "mux", "deliver"]


@pytest.mark.parametrize("stage", StageName)
def test_a_stage_parts_all_stages_in_those_before_it_and_the_rest(stage: StageName) -> None:
    assert (*stage.before, *stage.onward) == tuple(StageName)
    assert stage.onward[0] is stage and len(stage.before) == stage.position


def test_the_negative_prompts_embedding_has_a_folder_and_is_no_stage() -> None:
    assert set(ARTIFACT_FOLDERS) - set(StageName) == {NEGATIVE} == {"negative"}
    assert len(ARTIFACT_FOLDERS) == len(ARTIFACT_STAGES) + 1


def test_deliver_leaves_no_artifact_and_is_a_stage_of_clips_with_a_target() -> None:
    assert set(StageName) - set(ARTIFACT_STAGES) == {StageName.DELIVER}
    made = profile_stages({"refiner": None})
    assert clip_stages({"refiner": None}, is_delivered=False) == made
    assert clip_stages({"refiner": None}, is_delivered=True) == (*made, StageName.DELIVER)


@pytest.mark.parametrize(("name", "lacks"), [("1080p", set()), ("540p", {StageName.REFINE})])
def test_a_profile_and_its_document_have_the_same_stages(name: str, lacks: set[StageName]) -> None:
    profile = load_profile(name, CONFIGS)
    assert profile.stages == tuple(stage for stage in ARTIFACT_STAGES if stage not in lacks)
    assert profile_stages(profile.model_dump(mode="json")) == profile.stages
