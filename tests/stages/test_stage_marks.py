"""A clip's file says what made it, by the recipe under which it is stored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image, ImageFont

from magi2.artifacts.local import LocalStore
from magi2.config.settings import Settings
from magi2.media.marks.read import read_marks
from magi2.media.reading import read_frames
from magi2.stages.prepare import prepare
from magi2.stages.render import Outcome
from magi2.types import CLIP, POSTER
from tests.render_helpers import make_clip, payload_file, render, small_profile, states
from tests.stages.stage_renders import Rendered
from tests.watermark_package import NAME, install_example


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


def test_other_marks_are_muxed_anew_and_nothing_is_rendered_for_them(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    face = ImageFont.load_default(20)
    assert isinstance(face, ImageFont.FreeTypeFont)
    (tmp_path / "font.ttf").write_bytes(face.font_bytes)
    install_example(tmp_path, monkeypatch)
    profile = small_profile(
        *("delivery.size=[256,128]", "delivery.fit=scale", "delivery.label={text: Made by AI, seconds: 2}"),
        *("delivery.provenance=full", f"delivery.watermark={NAME}"),
    )
    settings = Settings(
        ckpt_root=tiny_checkpoint,
        store=str(preview_render.copy(tmp_path / "store")),
        content_producer="某 studio",
        label_font=tmp_path / "font.ttf",
        watermarks=(NAME,),
    )
    clips = [make_clip(profile)]
    (outcome,) = render(prepare(profile, settings, clips), clips)
    assert {stage for stage, state in states(outcome).items() if state == "made"} == {"mux"}
    file = clip_file(tmp_path / "store", outcome)
    marks = read_marks(file)
    assert marks.entry is not None and marks.entry["ContentProducer"] == "某 studio"
    assert json.loads(marks.tags["magi2_record"])["prompt"] == clips[0].prompt
    corner = [frame[4:28, 4:100].float().mean(-1) for frame in list(read_frames(file))[:26]]
    assert [bool(patch.max() > 200 and patch.min() < 40) for patch in corner] == [True] * 25 + [False]
    manifest = LocalStore(tmp_path / "store").find("mux", outcome.results[-1].key or "")
    assert manifest is not None and manifest.recipe.config["marking"]["watermark"]["version"] == "1.0"
    poster = Image.open(payload_file(tmp_path / "store", "mux", manifest.key, POSTER))
    plain = Image.open(payload_file(preview_render.store, "mux", preview_render.outcomes[0].results[-1].key, POSTER))
    assert poster.tobytes() != plain.tobytes(), "the watermark is in every picture of the clip"
