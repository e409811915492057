"""What a rank of many loads, and what keeps the next clip from beginning."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from magi2.artifacts.recipe import Recipe
from magi2.errors import ConfigError, ContractError, GroupLostError, MediaError, PausedError
from magi2.parallel.layout import ParallelLayout
from magi2.parallel.mesh import Mesh
from magi2.stages.context import StageContext
from magi2.stages.decode import DecodeStage
from magi2.stages.render import run_stage
from magi2.stages.team import Team, _are_even, _count
from magi2.types import StageName
from tests.render_helpers import make_clip, make_context, small_profile


def follower(context: StageContext) -> StageContext:
    """The context of rank 1 of two, whose groups nobody has made."""
    mesh = replace(Mesh.single(context.device), layout=ParallelLayout(2), rank=1)
    return replace(context, team=Team(mesh))


@pytest.mark.parametrize("decoder", ["wan", "turbo"])
def test_decoders_are_loaded_only_on_ranks_that_use_them(decoder: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    context = make_context(tiny_checkpoint, tmp_path / "store", small_profile(f"decode.decoder={decoder}"))
    alone = DecodeStage(context).load()
    assert alone.video is not None and alone.audio is not None
    other = DecodeStage(follower(context)).load()
    assert other.audio is None
    assert (other.video is None) == (decoder == "wan")


def test_clips_after_a_pause_do_not_begin(tiny_checkpoint: Path, tmp_path: Path) -> None:
    profile = small_profile()
    context = make_context(tiny_checkpoint, tmp_path / "store", profile)
    clips = [make_clip(profile, f"heron {number}") for number in range(3)]
    asked: list[int] = []

    def ask() -> None:
        asked.append(1)
        if len(asked) == 2:
            raise PausedError("wait")

    context.before_clip = ask
    with pytest.raises(PausedError):
        run_stage(context, StageName.ENHANCE, clips)
    assert len(list(context.store.keys("enhance"))) == 1


def test_single_rank_settles_by_its_own_error(tiny_checkpoint: Path, tmp_path: Path) -> None:
    profile = small_profile()
    context, clip = make_context(tiny_checkpoint, tmp_path / "store", profile), make_clip(profile)
    context.team.settle(clip, None)
    with pytest.raises(MediaError):
        context.team.settle(clip, MediaError("no ffmpeg"))


@pytest.mark.parametrize(
    ("issued", "even"),
    [
        ([{"0,1": 5}, {"0,1": 5}], True),
        ([{"0,1": 5}, {"0,1": 6}], False),
        ([{"0,1,2,3": 5, "0,1": 7}, {"0,1,2,3": 5, "0,1": 7}, {"0,1,2,3": 5, "2,3": 9}], True),
        ([{"0,1": None}, {"0,1": None}], False),
    ],
)
def test_group_is_clean_when_its_ranks_issued_equally_many_collectives(
    issued: list[dict[str, int | None]], even: bool
) -> None:
    assert _are_even([{"issued": counts} for counts in issued]) is even


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    """A gloo group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD  # type: ignore[misc]
    dist.destroy_process_group()


def test_installed_torch_counts_the_collectives_of_a_group(group: dist.ProcessGroup) -> None:
    """Private to torch: if this fails, find another way to see whether the ranks are even before moving to it."""
    before = _count(group)
    assert before is not None, f"torch {torch.__version__} does not count the collectives of a gloo group"
    for number, collective in enumerate((dist.all_reduce, dist.all_reduce, lambda one: dist.broadcast(one, src=0))):
        collective(torch.ones(1))
        assert _count(group) == before + number + 1, f"torch {torch.__version__} counts otherwise"


def test_torch_that_does_not_count_collectives_is_refused_by_its_version(
    group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(dist.ProcessGroup, "_get_sequence_number_for_group")
    single = Mesh.single(torch.device("cpu"))
    for need in (lambda: Team(replace(single, layout=ParallelLayout(2))), lambda: _count(group)):
        with pytest.raises(ConfigError, match=rf"torch {re.escape(torch.__version__)} does not count .*constraints"):
            need()
    assert Team(single).size == 1


def test_lost_group_names_its_cause() -> None:
    error = GroupLostError(ContractError("uneven"), "abc")
    assert (str(error), error.code, error.retryable, error.clip_id) == ("uneven", "infrastructure", True, "abc")


def test_rank_that_is_gone_is_no_clips_fault(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(orders: list[object], **rest: object) -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr("torch.distributed.broadcast_object_list", closed)
    profile = small_profile()
    context = make_context(tiny_checkpoint, tmp_path / "store", profile)
    mesh = replace(Mesh.single(context.device), layout=ParallelLayout(2))
    stage = DecodeStage(replace(context, team=Team(mesh)))
    monkeypatch.setattr(DecodeStage, "recipe", lambda self, clip: Recipe("decode", 1, seed=clip.seed))
    for talk in (lambda: stage.run([make_clip(profile)]), stage.follow):
        with pytest.raises(GroupLostError, match="another rank is gone") as caught:
            talk()
        assert caught.value.clip_id is None
