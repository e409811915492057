"""Reference images in the encode stage: shown as planned, and flagged where they are odd."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from PIL import Image

from magi2.batches.batch_file import Row, make_batch
from magi2.errors import ImageError
from magi2.stages.render import run_stage
from magi2.types import StageName
from tests.media.picture_samples import noisy
from tests.render_helpers import make_context, small_profile


def test_odd_pictures_are_flags_of_their_clips_and_others_are_shown_as_planned(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    profile = small_profile()
    clear = noisy(64, 32).convert("RGBA")
    clear.putalpha(100)
    clear.save(tmp_path / "clear.png")
    Image.new("RGB", (2, 2), "red").save(tmp_path / "dot.png")
    rows = [Row(number, {"prompt": name, "image": f"{name}.png"}) for number, name in enumerate(("clear", "dot"))]
    clips = make_batch(rows, lambda name: profile, folder=tmp_path).require_good().clips
    older = replace(clips[0], figures=(replace(clips[0].figures[0], treatment=()),))
    context = make_context(tiny_checkpoint, tmp_path / "store", profile)
    run_stage(context, StageName.ENHANCE, list(clips))
    good, odd, other = run_stage(context, StageName.ENCODE, [*clips, older])
    assert (good.state, good.flags) == ("made", ())
    assert (odd.state, odd.flags) == ("made", ("figure_1_tiny", "figure_1_one_colour"))
    assert other.state == "failed" and isinstance(other.error, ImageError)
    assert "read otherwise when planned (run the batch again)" in str(other.error)
