"""Previews by a schedule: the same bits however the run went, and runs without any guidance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from magi2.artifacts.manifest import Manifest
from magi2.errors import InfrastructureError
from magi2.stages.context import StageContext
from magi2.stages.contracts import TENSORS
from magi2.stages.preview import PreviewStage
from magi2.stages.render import run_stage
from magi2.types import Clip, StageName
from tests.render_helpers import make_clip, make_context, render, small_profile, states

HIGH = small_profile("preview.steps=8", "preview.quality=high", "text.use_negative_prompt=false")
"""Steps 3 and 5 reuse a velocity, 6 and 7 are not guided."""


def context_at(checkpoint: Path, store: Path) -> StageContext:
    context = make_context(checkpoint, store, HIGH)
    context.snapshot_every = 1
    return context


def made(context: StageContext, *clips: Clip) -> list[Manifest]:
    """The previews of clips, in order."""
    for stage in (StageName.ENHANCE, StageName.ENCODE, StageName.PREVIEW):
        results = run_stage(context, stage, list(clips))
    found = [context.store.find(StageName.PREVIEW, result.key) for result in results if result.key]
    return [manifest for manifest in found if manifest is not None]


def digest(manifest: Manifest) -> str:
    """Of the latents."""
    return manifest.payloads[TENSORS].sha256


@pytest.fixture(scope="module")
def unbroken(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    (manifest,) = made(context_at(tiny_checkpoint, tmp_path_factory.mktemp("unbroken")), make_clip(HIGH))
    return manifest


def test_the_manifest_says_what_was_evaluated(unbroken: Manifest) -> None:
    assert unbroken.recipe.config["schedule"] == {"guide_until_step": 5, "reuse_steps": [3, 5]}
    assert (unbroken.report["steps"], unbroken.report["evaluations"]) == (8, 2 * 4 + 2)


@pytest.mark.parametrize("steps_done", [3, pytest.param(6, marks=pytest.mark.faults)])
def test_a_run_that_was_killed_goes_on_to_the_same_bits(
    steps_done: int, unbroken: Manifest, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a step that reuses a velocity, and after guidance has ended."""
    told: list[tuple[int, int]] = []

    def step(self: PreviewStage, clip: object) -> Callable[[int, int], None]:
        def tell(done: int, total: int) -> None:
            told.append((done, total))
            if len(told) == steps_done:
                raise InfrastructureError("the power fails")

        return tell

    monkeypatch.setattr(PreviewStage, "on_step", step)
    context, clip = context_at(tiny_checkpoint, tmp_path), make_clip(HIGH)
    assert made(context, clip) == []
    (manifest,) = made(context, clip)
    assert digest(manifest) == digest(unbroken)
    evaluations = [2, 4, 6, 6, 8, 8, 9, 10]
    assert told == [(done, 10) for done in evaluations]


@pytest.mark.faults
def test_neither_the_shard_nor_a_rerun_changes_a_bit(unbroken: Manifest, tiny_checkpoint: Path, tmp_path: Path) -> None:
    context, clip = context_at(tiny_checkpoint, tmp_path), make_clip(HIGH)
    other = replace(clip, prompt="a pier in the fog", seed=8)
    assert digest(made(context, other, clip)[1]) == digest(unbroken)
    context.force = frozenset({StageName.PREVIEW})
    (again,) = run_stage(context, StageName.PREVIEW, [clip])
    assert (again.state, again.flags) == ("made", ())


@pytest.mark.faults
def test_a_profile_of_eight_steps_without_guidance_runs_to_the_end(tiny_checkpoint: Path, tmp_path: Path) -> None:
    distilled = ("preview.steps=8", "preview.schedule.guide_until_step=0", "text.use_negative_prompt=false")
    profile = small_profile(*distilled)
    context = make_context(tiny_checkpoint, tmp_path, profile)
    (outcome,) = render(context, [make_clip(profile)])
    assert set(states(outcome).values()) == {"made"}
    key = next(result.key for result in outcome.results if result.stage is StageName.PREVIEW)
    manifest = context.store.find(StageName.PREVIEW, key or "")
    assert manifest is not None and manifest.report["evaluations"] == 8
    assert set(manifest.recipe.inputs) == {"encode"}
