"""One shot, stage by stage and rerun from cached latents give the same bits; lengths are as promised."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from magi2.media.probe import MediaProbe, probe
from magi2.recipes.book import delivered_frames, frame_rate
from magi2.stages.mux import CLIP
from magi2.stages.render import Outcome, run_stage
from tests.render_helpers import (
    SMALL,
    digests,
    make_clip,
    make_context,
    payload_file,
    remove_stages,
    render,
    small_profile,
    states,
    stored_files,
)
from tests.stages.stage_renders import Rendered

BOTH = pytest.mark.parametrize("rendered", ["preview_render", "refined_render"], indirect=True)


def probed(store: Path, outcome: Outcome) -> MediaProbe:
    return probe(payload_file(store, "mux", outcome.results[-1].key, CLIP))


@BOTH
def test_stage_by_stage_equals_one_shot(rendered: Rendered, tiny_checkpoint: Path, tmp_path: Path) -> None:
    original = rendered.outcomes[
        -1
    ]  # of the one with an image, if there is one: the other's preview is the refined one's
    outcome = Outcome(original.clip)
    for stage in rendered.profile.stages:
        context = make_context(tiny_checkpoint, tmp_path / "store", rendered.profile, [outcome.clip])
        outcome.results += run_stage(context, stage, [outcome.clip])
    assert digests(tmp_path / "store", outcome) == rendered.digests[-1]
    clip = payload_file(tmp_path / "store", "mux", outcome.results[-1].key, CLIP)
    assert clip.read_bytes() == payload_file(rendered.store, "mux", original.results[-1].key, CLIP).read_bytes()


@pytest.mark.faults  # `make test` compares a batch under Airflow, each stage in a process of its own, with one in this
def test_another_process_makes_the_same_bytes(preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path) -> None:
    clip, key = preview_render.clips[0], preview_render.outcomes[0].results[-1].key
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAGI2_")}
    environment |= {"MAGI2_CKPT_ROOT": str(tiny_checkpoint), "MAGI2_STORE": str(tmp_path / "store")}
    command = [sys.executable, "-m", "magi2.cli.main", "render", "--prompt", clip.prompt, "--seed", str(clip.seed)]
    command += ["--profile", "tiny-preview", *(word for override in SMALL for word in ("--set", override)), "--json"]
    command += ["--out", str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=600)
    file = Path(json.loads(done.stdout)["clips"][0]["files"][CLIP])
    assert file.read_bytes() == payload_file(preview_render.store, "mux", key, CLIP).read_bytes()
    assert "mux" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("rendered", "again"),
    [("preview_render", ("decode", "mux")), ("refined_render", ("refine", "decode", "mux"))],
    indirect=["rendered"],
)
def test_rerun_from_cached_latents_equals_one_shot(
    rendered: Rendered, again: tuple[str, ...], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    store = rendered.copy(tmp_path / "store")
    remove_stages(store, rendered.outcomes[0], *again)
    (outcome,) = render(make_context(tiny_checkpoint, store, rendered.profile), rendered.clips[:1])
    assert {stage for stage, state in states(outcome).items() if state == "made"} == set(again)
    assert digests(store, outcome) == rendered.digests[0]


def test_clips_differ_where_their_inputs_do(preview_render: Rendered, refined_render: Rendered) -> None:
    from_prompt, from_image = preview_render.digests
    assert all(from_prompt[stage] != from_image[stage] for stage in from_prompt)
    assert refined_render.digests[0]["preview"] == from_prompt["preview"], "its profile makes the same preview"


@BOTH
def test_frames_and_sound_are_as_long_as_promised(rendered: Rendered) -> None:
    frames, fps = (249, Fraction(25)) if rendered.profile.refiner else (125, Fraction(25, 2))
    assert (delivered_frames(rendered.profile), frame_rate(rendered.profile)) == (frames, fps)
    for outcome in rendered.outcomes:
        found = probed(rendered.store, outcome)
        assert found.video is not None and found.audio is not None
        assert (found.video.frame_count, found.video.fps) == (frames, fps)
        assert (found.audio.sample_rate_hz, found.audio.channels) == (44_100, 2)
        assert found.audio.duration_s == pytest.approx(frames / fps, abs=0.020)
        assert found.video.duration_s == pytest.approx(frames / fps, abs=0.001)


def test_a_held_last_frame_gives_ten_seconds(refined_render: Rendered, tiny_checkpoint: Path, tmp_path: Path) -> None:
    store = refined_render.copy(tmp_path / "store")
    profile = small_profile("delivery.pad_last_frame=true", refined=True)
    clip = make_clip(profile)
    (outcome,) = render(make_context(tiny_checkpoint, store, profile), [clip])
    assert {stage for stage, state in states(outcome).items() if state == "made"} == {"mux"}
    found = probed(store, outcome)
    assert found.video is not None and found.audio is not None
    assert (found.video.frame_count, found.video.duration_s) == (250, pytest.approx(10.0, abs=0.001))
    assert found.audio.duration_s == pytest.approx(10.0, abs=0.020)


def test_a_store_holds_artifacts_and_images_and_nothing_else(preview_render: Rendered) -> None:
    places = {name.partition("/")[0]: name for name in stored_files(preview_render.store)}
    assert set(places) == {"artifacts", "documents"} and places["documents"].startswith("documents/images/")
