"""A clip's file says what made it, by the recipe under which it is stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import ImageFont

from magi2.config.profile import Profile
from magi2.config.settings import Settings
from magi2.media.marks.read import read_marks
from magi2.media.reading import read_frames
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
    marks = read_marks(muxed_anew(store, profile, tiny_checkpoint, content_producer="某 studio"))
    assert marks.entry is not None and marks.entry["ContentProducer"] == "某 studio"
    if provenance == "full":
        assert json.loads(marks.tags["magi2_record"])["prompt"] == make_clip(profile).prompt
    else:
        assert marks.tags == {}


def test_a_label_is_in_the_clip_and_nothing_is_rendered_for_it(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    face = ImageFont.load_default(20)
    assert isinstance(face, ImageFont.FreeTypeFont)
    (tmp_path / "font.ttf").write_bytes(face.font_bytes)
    changes = ("delivery.size=[256,128]", "delivery.fit=scale", "delivery.label={text: Made by AI, seconds: 2}")
    store, profile = preview_render.copy(tmp_path / "store"), small_profile(*changes)
    frames = list(read_frames(muxed_anew(store, profile, tiny_checkpoint, label_font=tmp_path / "font.ttf")))
    corner = [frame[4:28, 4:100].float().mean(-1) for frame in (frames[0], frames[24], frames[25])]
    assert [bool(patch.max() > 200 and patch.min() < 40) for patch in corner] == [True, True, False]


def muxed_anew(store: Path, profile: Profile, checkpoint: Path, **settings: Any) -> Path:
    """The file of the first clip under a profile that changes nothing but delivery."""
    clips = [make_clip(profile)]
    (outcome,) = render(prepare(profile, Settings(ckpt_root=checkpoint, store=str(store), **settings), clips), clips)
    assert {stage for stage, state in states(outcome).items() if state == "made"} == {"mux"}
    return clip_file(store, outcome)
