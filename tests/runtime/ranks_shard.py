"""A planned shard whose clips are encoded, for ranks to go on with."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from magi2.artifacts.local import LocalStore
from magi2.artifacts.tensors import load_tensors
from magi2.batches.plan import save_plan
from magi2.config.profile import Profile
from magi2.config.settings import Settings
from magi2.config.strict import validate
from magi2.stages.contracts import TENSORS
from magi2.stages.prepare import prepare
from magi2.stages.render import run_stage
from magi2.types import Clip, StageName
from tests.batch_samples import one_shard
from tests.render_helpers import CONFIGS, make_clip, small_profile

STEPS, SNAPSHOT_EVERY = 3, 2
BATCH = "batch"


@dataclass(frozen=True)
class RanksShard:
    """A store with the clips' captions and embeddings; `seed` tells clips apart."""

    store: Path
    checkpoint: Path
    profile: Profile
    clips: tuple[Clip, ...]

    def copy(self, target: Path) -> RanksShard:
        """The same in a store of its own, to be changed."""
        shutil.copytree(self.store, target)
        return RanksShard(target, self.checkpoint, self.profile, self.clips)

    def plan(self, number: int, clips: Sequence[Clip]) -> None:
        """Write the documents of a shard."""
        save_plan(one_shard(BATCH, self.profile, clips, number=number), LocalStore(self.store))

    def run_alone(self, stage: StageName, clips: Sequence[Clip]) -> list[str]:
        """Make a stage of the clips by one rank in this process; their states."""
        settings = Settings(ckpt_root=self.checkpoint, store=str(self.store), device="cpu", configs=CONFIGS)
        results = run_stage(prepare(self.profile, settings, clips), stage, clips)
        return [result.state for result in results]

    def key(self, stage: StageName, clip: Clip) -> str:
        """The key of a clip's artifact."""
        settings = Settings(ckpt_root=self.checkpoint, store=str(self.store), device="cpu", configs=CONFIGS)
        return prepare(self.profile, settings, [clip]).recipe(stage, clip).key

    def digests(self, stage: StageName, clip: Clip) -> dict[str, str]:
        """SHA-256 of the payloads of a clip's artifact."""
        manifest = LocalStore(self.store).find(stage, self.key(stage, clip))
        assert manifest is not None
        return {name: payload.sha256 for name, payload in manifest.payloads.items()}

    def latents(self, stage: StageName, clip: Clip) -> dict[str, Tensor]:
        """The tensors of a clip's artifact."""
        store, key = LocalStore(self.store), self.key(stage, clip)
        manifest = store.find(stage, key)
        assert manifest is not None
        return load_tensors(store.fetch(stage, key, TENSORS), specs=manifest.payloads[TENSORS].tensors or {})

    def distance(self, other: RanksShard, stage: StageName, clip: Clip) -> float:
        """The largest relative L2 distance of a clip's latents in two stores; random streams must be equal."""
        ours, theirs = self.latents(stage, clip), other.latents(stage, clip)
        assert ours.pop("generator_state", torch.empty(0)).equal(theirs.pop("generator_state", torch.empty(0)))
        return max(float((ours[name] - theirs[name]).norm() / theirs[name].norm()) for name in theirs)


def make_shard(store: Path, checkpoint: Path, image: Path) -> RanksShard:
    """Two clips: one with an image, and one of a long prompt."""
    profile = _smooth_profile()
    clips = (
        make_clip(profile, "<Figure 1> turns around", seed=1, image=image),
        make_clip(profile, "an endless staircase " * 20, seed=2),
    )
    shard = RanksShard(store, checkpoint, profile, clips)
    shard.plan(0, clips)
    for stage in (StageName.ENHANCE, StageName.ENCODE):
        assert shard.run_alone(stage, clips) == ["made"] * len(clips)
    return shard


def _smooth_profile() -> Profile:
    """A tiny profile that asks every expert for every token: no rounding can make a token choose other experts."""
    overrides = (f"preview.steps={STEPS}", "text.use_negative_prompt=false")
    content = small_profile(*overrides, refined=True).model_dump(mode="json")
    moe = content["architectures"]["preview"]["moe_config"]
    moe["top_k"] = moe["num_experts"]
    return validate(Profile, content, place="test")
