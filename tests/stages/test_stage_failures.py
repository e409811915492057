"""One clip's failure is its own; what belongs to everybody is raised; nothing damaged is used or published."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from magi2.artifacts.local import LocalStore
from magi2.errors import CheckpointError, GroupLostError, ImageError, PromptTooLongError
from magi2.models.text_encoder.encoder import TextEncoder
from magi2.quality.defects import judge
from magi2.quality.measures import Measures
from magi2.quality.thresholds import USUAL
from magi2.recipes.book import RecipeBook
from magi2.stages.decode import Decoders, DecodeStage
from magi2.stages.encode import EncodeStage
from magi2.stages.enhance import EnhanceStage
from magi2.stages.mux import MuxStage
from magi2.stages.render import Outcome, run_stage
from magi2.types import Clip, Expect, StageName
from tests.render_helpers import (
    digests,
    flip_byte,
    make_clip,
    make_context,
    payload_file,
    remove_stages,
    render,
    small_profile,
    states,
    stored_files,
    truncate,
)
from tests.small_disk import files_of_at_most
from tests.stages.stage_renders import Rendered

LONG = "an endless staircase " * 20


def failure_code(outcome: Outcome) -> str | None:
    return outcome.failure.error.code if outcome.failure and outcome.failure.error else None


# -- too long prompts --------------------------------------------------------------------------------------------------


def test_a_too_long_prompt_fails_alone_and_before_the_network_runs(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = small_profile("text.max_tokens=30", "text.use_negative_prompt=false", "preview.steps=1")
    encoded: list[int] = []
    embed = TextEncoder._embed
    monkeypatch.setattr(TextEncoder, "_embed", lambda self, kept: (encoded.append(len(kept)), embed(self, kept))[1])
    clips = [make_clip(profile, prompt) for prompt in (LONG, "an egret")]
    outcomes = render(make_context(tiny_checkpoint, tmp_path / "store", profile), clips)
    assert [failure_code(outcome) for outcome in outcomes] == ["prompt_too_long", None]
    assert [len(outcome.results) for outcome in outcomes] == [1, 5]  # enhance counts already
    assert len(encoded) == 1 and encoded[0] <= 30
    error = outcomes[0].failure and outcomes[0].failure.error
    assert "limit 30" in str(error) and "on_overflow: truncate" in str(error)


def test_texts_that_the_file_cannot_hold_fail_the_clip_before_anything_is_made_for_it(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    profile = small_profile("delivery.provenance=full", "text.use_negative_prompt=false", "text.on_overflow=truncate")
    clips = [make_clip(profile, "x" * 60_000)]
    (outcome,) = render(make_context(tiny_checkpoint, tmp_path / "store", profile), clips)
    assert (failure_code(outcome), [result.stage for result in outcome.results]) == ("input", ["enhance", "encode"])
    assert "provenance=ids" in str(outcome.failure and outcome.failure.error)


def test_a_truncated_prompt_is_flagged_on_its_clip(tiny_checkpoint: Path, tmp_path: Path) -> None:
    profile = small_profile("text.max_tokens=30", "text.use_negative_prompt=false", "text.on_overflow=truncate")
    clips = [make_clip(profile, LONG), make_clip(profile)]
    context = make_context(tiny_checkpoint, tmp_path / "store", profile)
    run_stage(context, StageName.ENHANCE, clips)
    for state in ("made", "reused"):
        results = run_stage(context, StageName.ENCODE, clips)
        assert [(result.state, result.flags) for result in results] == [(state, ("text_truncated",)), (state, ())]


def test_a_too_long_negative_prompt_is_everybodys_error(tiny_checkpoint: Path, tmp_path: Path) -> None:
    profile = small_profile("text.max_tokens=30")
    with pytest.raises(PromptTooLongError):
        render(make_context(tiny_checkpoint, tmp_path / "store", profile), [make_clip(profile)])


# -- missing inputs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("done", "stage", "named"),
    [
        ((), "encode", "enhance"),
        ((), "mux", "enhance"),
        (("enhance",), "preview", "encode"),
        (("enhance", "encode"), "refine", "preview"),
        (("enhance", "encode"), "decode", "preview"),
        (("enhance", "encode", "preview"), "decode", "refine"),
        (("enhance", "encode", "preview", "refine"), "mux", "decode"),
    ],
)
def test_a_stage_without_its_input_says_which_to_run(
    done: tuple[str, ...], stage: str, named: str, refined_render: Rendered, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    store = refined_render.copy(tmp_path / "store")
    later = [s for s in ("enhance", "encode", "preview", "refine", "decode", "mux") if s not in done]
    remove_stages(store, refined_render.outcomes[0], *later)
    context = make_context(tiny_checkpoint, store, refined_render.profile)
    (result,) = run_stage(context, StageName(stage), refined_render.clips[:1])
    assert (result.state, result.error and result.error.code) == ("failed", "input")
    assert f"run the {named} stage first" in str(result.error)


def test_a_missing_negative_embedding_names_the_stage_that_makes_it(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    store = preview_render.copy(tmp_path / "store")
    (negative,) = LocalStore(store).keys("negative")
    LocalStore(store).remove("negative", negative)
    remove_stages(store, preview_render.outcomes[0], "preview")
    context = make_context(tiny_checkpoint, store, preview_render.profile)
    (result,) = run_stage(context, StageName.PREVIEW, preview_render.clips[:1])
    assert "no negative artifact" in str(result.error) and "run the encode stage first" in str(result.error)


# -- damage ------------------------------------------------------------------------------------------------------------


def damage(store: Path, outcome: Outcome, stage: str, name: str, how: Callable[[Path], None]) -> str:
    """Damage a payload and remove what was made from it; gives back the artifact's key."""
    if stage == "negative":
        (key,) = LocalStore(store).keys("negative")
    else:
        key = next(result.key or "" for result in outcome.results if result.stage.value == stage)
    how(payload_file(store, stage, key, name))
    order = ["enhance", "negative", "encode", "preview", "refine", "decode", "mux"]
    remove_stages(store, outcome, *order[order.index(stage) + 1 :])
    return key


def made_until(last: str, store: Path, rendered: Rendered, checkpoint: Path) -> Outcome:
    """The first clip's stages up to `last`, or to the one that fails."""
    outcome = Outcome(rendered.clips[0])
    for stage in rendered.profile.stages:
        outcome.results += run_stage(make_context(checkpoint, store, rendered.profile), stage, [outcome.clip])
        if outcome.failure or stage.value == last:
            break
    return outcome


def test_a_disk_that_takes_no_latents_for_a_while_costs_a_clip_a_retry_and_no_more(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    store = preview_render.copy(tmp_path / "store")
    remove_stages(store, preview_render.outcomes[0], "preview", "decode", "mux")
    with files_of_at_most(4096):
        outcome = made_until("preview", store, preview_render, tiny_checkpoint)
    assert failure_code(outcome) == "infrastructure"
    assert outcome.failure and outcome.failure.stage is StageName.PREVIEW
    assert "tensors.safetensors: File too large" in str(outcome.failure.error)
    assert_healed(made_until("preview", store, preview_render, tiny_checkpoint), store, preview_render)


def assert_healed(outcome: Outcome, store: Path, rendered: Rendered) -> None:
    found = digests(store, outcome)
    assert found == {stage: rendered.digests[0][stage] for stage in found}


@pytest.mark.parametrize(
    ("stage", "name", "reader"),
    [
        ("negative", "tensors.safetensors", "preview"),
        ("encode", "tensors.safetensors", "preview"),
        ("preview", "tensors.safetensors", "decode"),
        pytest.param("decode", "picture.mkv", "mux", marks=pytest.mark.faults),
        ("decode", "sound.wav", "mux"),
    ],
)
def test_a_flipped_byte_is_found_removed_and_healed(
    stage: str, name: str, reader: str, preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    store = preview_render.copy(tmp_path / "store")
    key = damage(store, preview_render.outcomes[0], stage, name, flip_byte)
    outcome = made_until(reader, store, preview_render, tiny_checkpoint)
    assert failure_code(outcome) == "corrupted_artifact"
    assert outcome.failure and outcome.failure.error and outcome.failure.error.retryable
    assert outcome.failure.stage.value == reader and LocalStore(store).find(stage, key) is None
    outcome = made_until(reader, store, preview_render, tiny_checkpoint)
    assert_healed(outcome, store, preview_render)


@pytest.mark.parametrize(
    ("stage", "name", "reader"),
    [
        ("enhance", "caption.json", "encode"),
        pytest.param("preview", "tensors.safetensors", "decode", marks=pytest.mark.faults),
        pytest.param("decode", "sound.wav", "mux", marks=pytest.mark.faults),
    ],
)
def test_a_truncated_payload_is_made_anew_at_once(
    stage: str,
    name: str,
    reader: str,
    preview_render: Rendered,
    tiny_checkpoint: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = preview_render.copy(tmp_path / "store")
    key = damage(store, preview_render.outcomes[0], stage, name, truncate)
    assert_healed(made_until(reader, store, preview_render, tiny_checkpoint), store, preview_render)
    assert f"{stage}/{key} is moved to {store / 'quarantine'}" in caplog.text
    assert [each.what for each in LocalStore(store).condemned()] == [f"{stage}/{key}"]


def test_a_flipped_byte_in_a_caption_never_reaches_the_encoder(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    store, clips = preview_render.copy(tmp_path / "store"), preview_render.clips[:1]
    damage(store, preview_render.outcomes[0], "enhance", "caption.json", flip_byte)
    (outcome,) = render(make_context(tiny_checkpoint, store, preview_render.profile), clips)
    assert digests(store, outcome) == preview_render.digests[0]


def test_a_neighbour_of_a_damaged_clip_is_finished(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    store = preview_render.copy(tmp_path / "store")
    damage(store, preview_render.outcomes[1], "preview", "tensors.safetensors", flip_byte)
    remove_stages(store, preview_render.outcomes[0], "mux")
    outcomes = render(make_context(tiny_checkpoint, store, preview_render.profile), preview_render.clips)
    assert [failure_code(outcome) for outcome in outcomes] == [None, "corrupted_artifact"]


# -- wrong values ------------------------------------------------------------------------------------------------------


def test_non_finite_latents_are_refused_and_not_published(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = preview_render.copy(tmp_path / "store")
    remove_stages(store, preview_render.outcomes[0], "preview", "decode", "mux")
    before = stored_files(store)

    def diverged(models: Any, layout: Any, video: Tensor, audio: Tensor, **settings: Any) -> tuple[Tensor, Tensor]:
        video[0, 0, 0, 0, 0] = float("nan")
        return video, audio

    monkeypatch.setattr("magi2.stages.preview.denoise_preview", diverged)
    (outcome,) = render(make_context(tiny_checkpoint, store, preview_render.profile), preview_render.clips[:1])
    assert failure_code(outcome) == "contract"
    assert "video: 1 of" in str(outcome.failure and outcome.failure.error)
    assert stored_files(store) == before


def test_tensors_of_another_shape_are_refused(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = preview_render.copy(tmp_path / "store")
    remove_stages(store, preview_render.outcomes[0], "preview", "decode", "mux")
    monkeypatch.setattr(
        "magi2.stages.preview.denoise_preview",
        lambda models, layout, video, audio, **settings: (video[:, :, 1:], audio),
    )
    (outcome,) = render(make_context(tiny_checkpoint, store, preview_render.profile), preview_render.clips[:1])
    assert failure_code(outcome) == "contract"
    assert "video is float32[1, 48, 31, 2, 4], must be float32[1, 48, 32, 2, 4]" in str(outcome.failure.error)


def test_an_image_that_changed_since_it_was_read_is_refused(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path, image: Path
) -> None:
    copied = Path(shutil.copy(image, tmp_path / "image.png"))
    clip = make_clip(preview_render.profile, image=copied, seed=9)
    shutil.copy(image.with_name("square_100.png"), copied)
    context = make_context(tiny_checkpoint, tmp_path / "store", preview_render.profile, [clip])
    run_stage(context, StageName.ENHANCE, [clip])
    (result,) = run_stage(context, StageName.ENCODE, [clip])
    assert isinstance(result.error, ImageError) and "changed since" in str(result.error)
    assert not list(LocalStore(tmp_path / "store").keys("encode"))


# -- models ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ("text_encoder/model.safetensors-00001-of-00002.safetensors", "text_encoder"),
        ("preview/model-00002-of-00003.safetensors", "preview"),
        ("stable-audio-open-1.0/model.safetensors", "stable-audio"),
    ],
)
def test_weights_that_cannot_be_loaded_are_everybodys_error(
    broken: str, named: str, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    weights = shutil.copytree(tiny_checkpoint, tmp_path / "weights")
    truncate(weights / broken)
    profile = small_profile("preview.steps=1")
    clips = [make_clip(profile), make_clip(profile, "an egret")]
    with pytest.raises(CheckpointError, match=rf"{named}.*truncated"):
        render(make_context(weights, tmp_path / "store", profile), clips)


def test_an_unreadable_image_encoder_fails_only_clips_with_images(
    preview_render: Rendered, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    weights = shutil.copytree(tiny_checkpoint, tmp_path / "weights")
    truncate(weights / "vae" / "Wan2.2_VAE.pth")
    context = make_context(weights, tmp_path / "store", preview_render.profile, preview_render.clips)
    run_stage(context, StageName.ENHANCE, preview_render.clips)
    results = run_stage(context, StageName.ENCODE, preview_render.clips)
    assert [result.error and result.error.code for result in results] == [None, "checkpoint"]


def test_any_error_in_loading_keeps_its_type(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(stage: EncodeStage) -> None:
        raise torch.OutOfMemoryError("no room for the weights")

    monkeypatch.setattr(EncodeStage, "load", load)
    for overrides in ((), ("text.use_negative_prompt=false",)):
        profile = small_profile(*overrides)
        with pytest.raises(torch.OutOfMemoryError, match="no room"):
            render(make_context(tiny_checkpoint, tmp_path / "store", profile), [make_clip(profile)])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (torch.OutOfMemoryError("clip too large"), "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (PermissionError(13, "Permission denied", "/somewhere"), "infrastructure"),
        (ZeroDivisionError("a bug"), "error"),
        (ValueError("at 3:4:\n    x = load(x)\n        ^\na compiler's reason"), "error"),
    ],
)
def test_an_error_of_one_clip_is_named_and_stays_with_it(
    error: Exception, code: str, preview_render: Rendered, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlucky = preview_render.clips[0]
    recipe = MuxStage.recipe

    def fail(stage: MuxStage, clip: Clip) -> Any:
        if clip == unlucky:
            raise error
        return recipe(stage, clip)

    monkeypatch.setattr(MuxStage, "recipe", fail)
    context = make_context(tiny_checkpoint, preview_render.store, preview_render.profile)
    failed, reused = run_stage(context, StageName.MUX, preview_render.clips)
    assert (failed.state, failed.error and failed.error.code) == ("failed", code)
    assert len(str(failed.error).splitlines()) == 1
    assert reused.state == "reused"


def test_a_broken_accelerator_ends_the_process(
    preview_render: Rendered, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(book: RecipeBook, clip: Clip, mode: str | None = None) -> Any:
        raise torch.AcceleratorError("illegal memory access")

    monkeypatch.setattr(RecipeBook, "enhance", fail)
    stage = EnhanceStage(make_context(tiny_checkpoint, preview_render.store, preview_render.profile))
    with pytest.raises(GroupLostError, match="illegal memory access") as caught:
        stage.run(preview_render.clips)
    assert caught.value.clip_id == preview_render.clips[0].clip_id


# -- dead clips --------------------------------------------------------------------------------------------------------


class FakeVideo:
    """A decoder whose frames are made by `frame(index)`, in groups of five."""

    def __init__(self, frame: Callable[[int], Tensor], frames: int = 125) -> None:
        self.frame, self.frames = frame, frames

    def decode(self, latents: Tensor) -> Iterator[Tensor]:
        for first in range(0, self.frames, 5):
            yield torch.stack([self.frame(index) for index in range(first, first + 5)], dim=1)[None]


class FakeAudio:
    """A decoder that gives ten seconds of a tone, or of silence."""

    def __init__(self, level: float) -> None:
        self.level = level

    def decode(self, latents: Tensor) -> Tensor:
        return self.level * torch.sin(torch.arange(512_000) / 20.0).expand(2, -1)


def lively(index: int) -> Tensor:
    """A bright square that goes from side to side."""
    frame = torch.full((3, 32, 64), -0.5)
    left = abs(index % 80 - 40)
    frame[:, 8:24, left : left + 16] = 0.5
    return frame


@pytest.fixture
def undecoded(preview_render: Rendered, tmp_path: Path) -> Path:
    """A store in which the first clip has to be decoded."""
    store = preview_render.copy(tmp_path / "store")
    remove_stages(store, preview_render.outcomes[0], "decode", "mux")
    return store


@pytest.mark.parametrize(
    ("frame", "level", "flags"),
    [
        (lively, 0.5, ()),
        (lambda index: torch.full((3, 32, 64), -1.0), 0.5, ("black", "frozen")),
        (lambda index: lively(0), 0.5, ("frozen",)),
        (lambda index: torch.full((3, 32, 64), -1.0) if index else lively(0), 0.5, ("black", "frozen")),
        (lambda index: lively(min(index, 62)), 0.5, ("frozen",)),
        (lively, 0.0, ("silent",)),
        (lambda index: lively(index).index_put_((torch.tensor(0),) * 3, torch.tensor(torch.nan)), 0.5, ("non_finite",)),
    ],
)
def test_defects_of_clips_are_measured_and_found_when_made_and_when_reused(
    frame: Callable[[int], Tensor],
    level: float,
    flags: tuple[str, ...],
    undecoded: Path,
    preview_render: Rendered,
    tiny_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DecodeStage, "load", lambda self: Decoders(FakeVideo(frame), FakeAudio(level)))
    context = make_context(tiny_checkpoint, undecoded, preview_render.profile)
    (outcome,), (again,) = (render(context, preview_render.clips[:1]) for _ in range(2))
    assert (failure_code(outcome), outcome.flags) == (None, ())
    assert set(states(again).values()) == {"reused"}
    for each in (outcome, again):
        measures = Measures.of(each.results[-1].measures)
        assert measures and judge(measures, Expect(), USUAL).flags == flags


def test_another_number_of_frames_than_planned_is_refused(
    undecoded: Path, preview_render: Rendered, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DecodeStage, "load", lambda self: Decoders(FakeVideo(lively, frames=120), FakeAudio(0.5)))
    (outcome,) = render(make_context(tiny_checkpoint, undecoded, preview_render.profile), preview_render.clips[:1])
    assert failure_code(outcome) == "contract"
    assert "120 frames, 125 were planned" in str(outcome.failure and outcome.failure.error)
