"""What stages there are, in which order, and which of them a profile has."""

from __future__ import annotations

import pytest

from magi2.config.load import load_profile
from magi2.types import ARTIFACT_FOLDERS, NEGATIVE, StageName, profile_stages
from tests.render_helpers import CONFIGS


def test_stages_are_those_that_a_clip_passes_in_order() -> None:
    assert list(StageName) == ["enhance", "encode", "preview", "refine", "decode", "mux"]


@pytest.mark.parametrize("stage", StageName)
def test_a_stage_parts_all_stages_in_those_before_it_and_the_rest(stage: StageName) -> None:
    assert (*stage.before, *stage.onward) == tuple(StageName)
    assert stage.onward[0] is stage and len(stage.before) == stage.position


def test_the_negative_prompts_embedding_has_a_folder_and_is_no_stage() -> None:
    assert set(ARTIFACT_FOLDERS) - set(StageName) == {NEGATIVE} == {"negative"}
    assert len(ARTIFACT_FOLDERS) == len(StageName) + 1


@pytest.mark.parametrize(("name", "lacks"), [("1080p", set()), ("540p", {StageName.REFINE})])
def test_a_profile_and_its_document_have_the_same_stages(name: str, lacks: set[StageName]) -> None:
    profile = load_profile(name, CONFIGS)
    assert profile.stages == tuple(stage for stage in StageName if stage not in lacks)
    assert profile_stages(profile.model_dump(mode="json")) == profile.stages
