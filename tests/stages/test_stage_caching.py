"""What is in the store is not computed again: stages, models, intermediates that retention took."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from magi2.artifacts.local import LocalStore
from magi2.stages.base import DIFFERS
from magi2.stages.render import STAGES, run_stage
from magi2.types import ARTIFACT_FOLDERS, StageName
from tests.render_helpers import (
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


@pytest.fixture
def no_models(preview_render: Rendered, refined_render: Rendered, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading any model fails the test; the clips of all tests are made before that."""
    for stage in STAGES.values():
        monkeypatch.setattr(stage, "load", lambda self: pytest.fail(f"{self.name} loaded its models"))


def test_a_refined_clip_leaves_artifacts_in_every_folder(refined_render: Rendered) -> None:
    assert {folder.name for folder in (refined_render.store / "artifacts").iterdir()} == set(ARTIFACT_FOLDERS)


@pytest.mark.usefixtures("no_models")
@pytest.mark.parametrize("rendered", ["preview_render", "refined_render"], indirect=True)
def test_a_second_run_computes_nothing(rendered: Rendered, tiny_checkpoint: Path) -> None:
    before = stored_files(rendered.store)
    outcomes = render(make_context(tiny_checkpoint, rendered.store, rendered.profile, rendered.clips), rendered.clips)
    for outcome in outcomes:
        assert states(outcome) == dict.fromkeys(rendered.profile.stages, "reused")
    assert [digests(rendered.store, outcome) for outcome in outcomes] == rendered.digests
    assert stored_files(rendered.store) == before


@pytest.mark.usefixtures("no_models")
def test_every_stage_alone_reuses_its_artifacts(
    preview_render: Rendered, tiny_checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    context = make_context(tiny_checkpoint, preview_render.store, preview_render.profile)
    for stage in preview_render.profile.stages:
        results = run_stage(context, stage, preview_render.clips)
        assert [result.state for result in results] == ["reused", "reused"]
        assert f"{preview_render.clips[0].short_id} {stage.value}: reused" in caplog.text


@pytest.mark.usefixtures("no_models")
def test_a_finished_clip_needs_nothing_that_retention_took(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    store = preview_render.copy(tmp_path / "store")
    remove_stages(store, preview_render.outcomes[0], "preview", "decode")
    before = stored_files(store)
    (outcome,) = render(make_context(tiny_checkpoint, store, preview_render.profile), preview_render.clips[:1])
    assert states(outcome) == dict.fromkeys(["enhance", "encode", "mux"], "reused")
    assert outcome.results[-1].key == preview_render.outcomes[0].results[-1].key
    assert stored_files(store) == before


@pytest.mark.parametrize(
    ("overrides", "made"),
    [
        (("delivery.crf=30",), {"mux"}),
        (("refiner.steps=2",), {"refine", "decode", "mux"}),
        pytest.param(("decode.rounding=truncate",), {"decode", "mux"}, marks=pytest.mark.faults),
    ],
)
def test_a_changed_setting_makes_only_what_depends_on_it(
    overrides: tuple[str, ...], made: set[str], refined_render: Rendered, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    store = refined_render.copy(tmp_path / "store")
    profile = small_profile(*overrides, refined=True)
    (outcome,) = render(make_context(tiny_checkpoint, store, profile), [make_clip(profile)])
    assert {stage for stage, state in states(outcome).items() if state == "made"} == made
    original, changed = refined_render.digests[0], digests(store, outcome)
    assert {stage for stage in changed if changed[stage] != original[stage]} == made


def test_a_changed_prompt_makes_only_its_own_clip(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    store, profile = preview_render.copy(tmp_path / "store"), preview_render.profile
    clips = [make_clip(profile, "a heron lands"), *preview_render.clips]
    for stage in (
        StageName.ENHANCE,
        StageName.ENCODE,
        StageName.PREVIEW,
    ):  # a new preview makes what follows: see below
        results = run_stage(make_context(tiny_checkpoint, store, profile, clips), stage, clips)
        assert [result.state for result in results] == ["made", "reused", "reused"]


def test_a_changed_seed_keeps_caption_and_embedding(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    store, profile = preview_render.copy(tmp_path / "store"), preview_render.profile
    (outcome,) = render(make_context(tiny_checkpoint, store, profile), [make_clip(profile, seed=8)])
    reused = dict.fromkeys(("enhance", "encode"), "reused")
    assert states(outcome) == {**reused, **dict.fromkeys(("preview", "decode", "mux"), "made")}


def test_order_and_names_of_clips_do_not_matter(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    backwards = tuple(reversed(preview_render.clips))
    context = make_context(tiny_checkpoint, tmp_path / "store", preview_render.profile, backwards)
    for stage in (StageName.ENHANCE, StageName.ENCODE):
        results = run_stage(context, stage, backwards)
        originals = [outcome.results for outcome in reversed(preview_render.outcomes)]
        assert [result.key for result in results] == [
            next(result.key for result in original if result.stage is stage) for original in originals
        ]
        assert [result.clip for result in results] == list(backwards)


def test_models_are_loaded_once_for_all_clips(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, loads = STAGES[StageName.ENCODE], []
    original = encode.load
    monkeypatch.setattr(encode, "load", lambda self: (loads.append(1), original(self))[1])
    context = make_context(tiny_checkpoint, tmp_path / "store", preview_render.profile, preview_render.clips)
    run_stage(context, StageName.ENHANCE, preview_render.clips)
    assert [result.state for result in run_stage(context, StageName.ENCODE, preview_render.clips)] == ["made", "made"]
    assert loads == [1]
    assert len(list(LocalStore(tmp_path / "store").keys("negative"))) == 1


def test_a_finished_run_needs_no_weight_that_can_be_read(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    weights = shutil.copytree(tiny_checkpoint, tmp_path / "weights")
    for path in weights.rglob("*"):
        if path.suffix in (".safetensors", ".pth", ".ckpt"):
            modified = path.stat().st_mtime_ns
            path.write_bytes(b"\0" * path.stat().st_size)
            os.utime(path, ns=(modified, modified))
    outcomes = render(make_context(weights, preview_render.store, preview_render.profile), preview_render.clips)
    assert all(set(states(outcome).values()) == {"reused"} for outcome in outcomes)


def test_a_forced_stage_is_made_again_and_compared(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, clips = preview_render.copy(tmp_path / "store"), preview_render.clips[:1]
    context = make_context(tiny_checkpoint, store, preview_render.profile)
    context.force = frozenset([StageName.MUX])
    before = stored_files(store)
    (result,) = run_stage(context, StageName.MUX, clips)
    assert (result.state, result.flags) == ("made", ())
    monkeypatch.setattr("magi2.stages.mux.write_poster", lambda picture, target: Image.new("RGB", (9, 9)).save(target))
    (result,) = run_stage(context, StageName.MUX, clips)
    assert result.flags == (f"{DIFFERS}poster.jpg", f"{DIFFERS}thumbnail.webp")
    assert stored_files(store) == before, "the stored artifact stays as it is"


def test_a_clip_that_was_stored_without_a_thumbnail_stays_as_it_is(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    store, clips = preview_render.copy(tmp_path / "store"), preview_render.clips[:1]
    context = make_context(tiny_checkpoint, store, preview_render.profile)
    (made,) = run_stage(context, StageName.MUX, clips)
    payload_file(store, "mux", made.key, "thumbnail.webp").unlink()
    (path,) = store.glob(f"artifacts/mux/*/{made.key}/manifest.json")
    manifest = json.loads(path.read_text())
    del manifest["payloads"]["thumbnail.webp"], manifest["sha256"]  # manifests of that time had no digest of their own
    path.write_text(json.dumps({**manifest, "format": 1}))
    before = stored_files(store)
    (found,) = run_stage(context, StageName.MUX, clips)
    assert (found.state, found.key, found.flags) == ("reused", made.key, ())
    context.force = frozenset([StageName.MUX])
    (again,) = run_stage(context, StageName.MUX, clips)
    assert (again.state, again.key, again.flags) == ("made", made.key, ()), "what it lacks is no difference"
    assert stored_files(store) == before
