"""Snapshots: found by who may go on from them, ignored by all others, never in the way of the loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from magi2.artifacts.local import LocalStore
from magi2.artifacts.recipe import Recipe
from magi2.errors import InfrastructureError
from magi2.parallel.layout import ParallelLayout
from magi2.sampling.preview import SamplerState
from magi2.stages.preview import PreviewStage
from magi2.stages.render import run_stage
from magi2.stages.snapshots import SnapshotWriter, load_snapshot, snapshot_name
from magi2.types import StageName
from tests.render_helpers import flip_byte, make_clip, make_context, small_profile

RECIPE = Recipe("preview", 1, seed=7)
STREAM = torch.arange(16, dtype=torch.uint8)


def state(step: int) -> SamplerState:
    video, audio = torch.full((1, 2, 3), float(step)), torch.full((1, 4), float(step))
    return SamplerState(video, audio, {"sample": video}, {"sample": audio}, step)


def save(store: LocalStore, *steps: int, recipe: Recipe = RECIPE) -> None:
    """Save the states, of which an error ends the loop, so that the last one is waited for."""
    with pytest.raises(RuntimeError), SnapshotWriter(store, recipe, ParallelLayout(), STREAM) as writer:
        for step in steps:
            writer(state(step))
        raise RuntimeError("the loop fails")


def load(store: LocalStore, recipe: Recipe = RECIPE, stream: Tensor = STREAM) -> SamplerState | None:
    tensors = load_snapshot(store, recipe, lambda: stream)
    return None if tensors is None else SamplerState.from_tensors(tensors)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def test_newest_state_is_kept_and_comes_back_equal(store: LocalStore) -> None:
    assert load(store) is None
    save(store, 10, 20, 30)
    found = load(store)
    assert found is not None and found.step == 30
    for name, tensor in state(30).tensors().items():
        assert found.tensors()[name].equal(tensor)
    assert list(store.list_documents("snapshots")) == [snapshot_name(RECIPE)]


def test_loop_that_ends_well_waits_for_no_further_state(store: LocalStore) -> None:
    with SnapshotWriter(store, RECIPE, ParallelLayout(), STREAM):
        pass
    assert load(store) is None


def _damage(store: LocalStore) -> None:
    flip_byte(store.root / "documents" / snapshot_name(RECIPE))


def _cut(store: LocalStore) -> None:
    name = snapshot_name(RECIPE)
    store.put_document(name, (store.get_document(name) or b"")[:100])


def _swap(store: LocalStore) -> None:
    other = Recipe("preview", 1, seed=8)
    save(store, 10, recipe=other)
    store.put_document(snapshot_name(RECIPE), store.get_document(snapshot_name(other)) or b"")


@pytest.mark.parametrize("spoil", [_damage, _cut, _swap])
def test_damaged_or_foreign_snapshot_is_named_and_ignored(
    store: LocalStore, spoil: Callable[[LocalStore], None], caplog: pytest.LogCaptureFixture
) -> None:
    save(store, 10)
    spoil(store)
    with caplog.at_level(logging.WARNING):
        assert load(store) is None
    assert snapshot_name(RECIPE) in caplog.text and "starts anew" in caplog.text
    condemned = [] if spoil is _swap else [snapshot_name(RECIPE)]
    assert [each.what for each in store.condemned()] == condemned


def test_snapshot_of_another_random_stream_is_ignored(store: LocalStore, caplog: pytest.LogCaptureFixture) -> None:
    save(store, 10)
    assert load(store, stream=STREAM.flip(0)) is None
    assert "random stream" in caplog.text


def test_state_that_is_not_finite_is_not_saved(store: LocalStore, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RuntimeError), SnapshotWriter(store, RECIPE, ParallelLayout(), STREAM) as writer:
        writer(SamplerState(torch.tensor([torch.nan]), torch.zeros(1), {}, {}, 10))
        raise RuntimeError("the loop fails")
    assert load(store) is None
    assert "not saved" in caplog.text


def test_store_that_is_away_costs_a_snapshot_and_no_clip(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(name: str, content: bytes) -> None:
        raise InfrastructureError("no route to the store")

    monkeypatch.setattr(store, "put_document", fail)
    save(store, 10)
    assert "no route to the store" in caplog.text


def test_clip_goes_on_where_its_loop_ended(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = small_profile("preview.steps=3", "text.use_negative_prompt=false")
    clip = make_clip(profile)
    context = make_context(tiny_checkpoint, tmp_path / "store", profile)
    context.snapshot_every = 2
    for stage in (StageName.ENHANCE, StageName.ENCODE):
        run_stage(context, stage, [clip])
    done: list[int] = []

    def step(self: PreviewStage, clip: object) -> Callable[[int, int], None]:
        def tell(count: int, total: int) -> None:
            done.append(count)
            if done == [1, 2, 3]:
                raise InfrastructureError("the loop ends after its last step, before anything is published")

        return tell

    monkeypatch.setattr(PreviewStage, "on_step", step)
    assert [result.state for result in run_stage(context, StageName.PREVIEW, [clip])] == ["failed"]
    assert [result.state for result in run_stage(context, StageName.PREVIEW, [clip])] == ["made"]
    assert done == [1, 2, 3, 3]
    assert list(context.store.list_documents("snapshots")) == []
