"""What a stage needs to work: recipes, store, weights, device; and reading other stages' artifacts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from magi2.artifacts.recipe import Recipe
from magi2.artifacts.store import ArtifactStore, Patience, at_once
from magi2.artifacts.tensors import TensorSpec, load_tensors
from magi2.checkpoints.layout import CheckpointFolder
from magi2.errors import ContractError, InputError
from magi2.media.ffmpeg import Ffmpeg
from magi2.platform import Accelerator
from magi2.prompts.caption import Caption
from magi2.prompts.client import EndpointSettings
from magi2.recipes.book import RecipeBook
from magi2.recipes.captions import CAPTION, caption_key, fetch_or_condemn
from magi2.recipes.marking import check_texts
from magi2.stages.contracts import TENSORS, Contract, check_promise
from magi2.stages.progress import Progress, Silent
from magi2.stages.team import Team
from magi2.types import NEGATIVE, Clip, StageName


@dataclass
class StageContext:
    """One run's surroundings. Captions are remembered, since every later recipe starts from one.

    `snapshot_every` is the number of denoising steps between two snapshots, 0 for none; `shows_pictures` if
    clips are to be seen at each. `before_clip` is called before
    each clip, on rank 0; what it raises ends the stage. `artifact_lock` is held while one is looked for and made.
    `patience` waits for a store that is away.
    """

    book: RecipeBook
    store: ArtifactStore
    weights: CheckpointFolder
    accelerator: Accelerator
    device: torch.device
    ffmpeg: Ffmpeg
    team: Team
    snapshot_every: int = 0
    shows_pictures: bool = False
    endpoint: EndpointSettings | None = None
    progress: Progress = field(default_factory=Silent)
    force: frozenset[StageName] = frozenset()
    before_clip: Callable[[], None] = lambda: None
    artifact_lock: Callable[[Recipe], AbstractContextManager[None]] = lambda recipe: nullcontext()
    patience: Patience = at_once
    _captions: dict[str, Caption] = field(default_factory=dict)

    @property
    def compute_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.book.profile.compute_dtype == "bfloat16" else torch.float32

    def caption(self, clip: Clip) -> Caption:
        """The clip's enhanced prompt. Raises InputError when the enhance stage has not made it yet."""
        if clip.clip_id not in self._captions:
            key = caption_key(self.store, self.book, clip)
            if key is None:
                raise missing_input(StageName.ENHANCE, clip)
            path = self.payload(StageName.ENHANCE, key, CAPTION)
            self._captions[clip.clip_id] = Caption.from_json(path.read_bytes())
        return self._captions[clip.clip_id]

    def recipe(self, stage: StageName, clip: Clip) -> Recipe:
        """The recipe of a stage after enhance.

        Raises: ContractError when the profile has no such stage, InputError when the clip's file cannot hold its texts:
        before anything is made for it.
        """
        caption = self.caption(clip).text
        check_texts(self.book.profile, clip.prompt, caption)
        chain = self.book.chain(clip, caption)
        if stage not in chain:
            raise ContractError(f"profile {self.book.profile.name} has no stage {stage.value}")
        return chain[stage]

    def payload(self, stage: str, key: str, name: str) -> Path:
        """A verified local copy of a payload, see `fetch_or_condemn`."""
        return fetch_or_condemn(self.store, stage, key, name)

    def specs(self, recipe: Recipe, contract: Contract, clip: Clip) -> Mapping[str, TensorSpec]:
        """What the tensors of an artifact are, by its manifest alone.

        Raises: InputError when its stage has not run; CorruptedArtifactError, also for tensors that break the contract.
        """
        manifest = self.store.find(recipe.stage, recipe.key)
        if manifest is None:
            raise missing_input(recipe.stage, clip)
        check_promise(manifest, contract)
        return manifest.payloads[TENSORS].tensors or {}

    def tensors(self, recipe: Recipe, contract: Contract, clip: Clip) -> dict[str, Tensor]:
        """The tensors of an artifact on the host, after digest, shape, dtype and finiteness were checked.

        Raises: as `specs` does, ContractError for a value that is NaN or infinite.
        """
        specs = self.specs(recipe, contract, clip)
        return load_tensors(self.payload(recipe.stage, recipe.key, TENSORS), specs=specs)


def missing_input(folder: str, clip: Clip) -> InputError:
    """The error for a stage whose input artifact is not in its folder of the store."""
    maker = StageName.ENCODE if folder == NEGATIVE else folder
    return InputError(f"clip {clip.short_id}: no {folder} artifact in the store", hint=f"run the {maker} stage first")
