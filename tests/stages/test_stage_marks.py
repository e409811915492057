"""A clip's file says what made it, by the recipe under which it is stored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from magi2.config.settings import Settings
from magi2.media.marks.read import read_marks
from magi2.stages.prepare import prepare
from magi2.stages.render import Outcome
from magi2.types import CLIP
from tests.render_helpers import make_clip, payload_file, render, small_profile, states
from tests.stages.stage_renders import Rendered


def clip_file(store: Path, outcome: Outcome) -> Path:
    return payload_file(store, "mux", outcome.results[-1].key, CLIP)


def test_every_delivered_file_is_marked_and_names_nobody_unless_told(preview_render: Rendered) -> None:
    for clip, outcome in zip(preview_render.clips, preview_render.outcomes, strict=True):
        marks = read_marks(clip_file(preview_render.store, outcome))
        assert marks.problems == () and marks.entry is not None
        key = outcome.results[-1].key
        assert (marks.entry["ProduceID"], marks.entry["ContentProducer"]) == (key, "")
        assert (marks.tags["magi2_artifact"], marks.tags["magi2_seed"]) == (key, str(clip.seed))
        assert marks.tags["magi2_profile"] == preview_render.profile.digest()


@pytest.mark.parametrize("provenance", ["full", "none"])
def test_other_marks_are_muxed_anew_and_nothing_is_rendered_for_them(
    provenance: str, preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    store, profile = preview_render.copy(tmp_path / "store"), small_profile(f"delivery.provenance={provenance}")
    clips = [make_clip(profile)]
    settings = Settings(ckpt_root=tiny_checkpoint, store=str(store), content_producer="某 studio")
    (outcome,) = render(prepare(profile, settings, clips), clips)
    assert {stage for stage, state in states(outcome).items() if state == "made"} == {"mux"}
    marks = read_marks(clip_file(store, outcome))
    assert marks.entry is not None and marks.entry["ContentProducer"] == "某 studio"
    if provenance == "full":
        assert json.loads(marks.tags["magi2_record"])["prompt"] == clips[0].prompt
    else:
        assert marks.tags == {}
