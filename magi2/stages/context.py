"""What a stage needs to work: recipes, store, weights, device; and reading other stages' artifacts."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from magi2.artifacts.store import ArtifactStore
from magi2.artifacts.tensors import load_tensors
from magi2.checkpoints.layout import CheckpointFolder
from magi2.errors import CorruptedArtifactError, InputError
from magi2.media.ffmpeg import Ffmpeg
from magi2.platform import Accelerator
from magi2.prompts.caption import Caption
from magi2.prompts.client import EndpointSettings
from magi2.stages.contracts import Contract, check_contract
from magi2.stages.progress import Progress, Silent
from magi2.stages.recipes import RecipeBook
from magi2.types import Clip, StageName

logger = logging.getLogger(__name__)

TENSORS = "tensors.safetensors"


@dataclass
class StageContext:
    """One run's surroundings. Captions are remembered, since every later recipe starts from one."""

    book: RecipeBook
    store: ArtifactStore
    weights: CheckpointFolder
    accelerator: Accelerator
    device: torch.device
    ffmpeg: Ffmpeg
    endpoint: EndpointSettings | None = None
    progress: Progress = field(default_factory=Silent)
    _captions: dict[str, Caption] = field(default_factory=dict)

    @property
    def compute_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.book.profile.compute_dtype == "bfloat16" else torch.float32

    def caption(self, clip: Clip) -> Caption:
        """The clip's enhanced prompt. Raises InputError when the enhance stage has not made it yet."""
        if clip.clip_id not in self._captions:
            for mode in self.caption_modes():
                key = self.book.enhance(clip, mode).key
                if self.store.find(StageName.ENHANCE, key) is not None:
                    path = self.payload(StageName.ENHANCE, key, "caption.json")
                    self._captions[clip.clip_id] = Caption.from_json(path.read_bytes())
                    break
            else:
                raise missing_input(StageName.ENHANCE, clip)
        return self._captions[clip.clip_id]

    def caption_modes(self) -> tuple[str, ...]:
        """The modes a clip's caption may be stored under, best first."""
        mode = self.book.enhancement_mode
        return (mode, "offline") if mode == "llm-then-offline" else (mode,)

    def payload(self, stage: StageName, key: str, name: str) -> Path:
        """A verified local copy of a payload.

        A damaged artifact is removed before CorruptedArtifactError goes on, so that the next run makes it anew instead
        of failing on it for ever.
        """
        try:
            return self.store.fetch(stage, key, name)
        except CorruptedArtifactError:
            logger.error("artifact %s/%s is damaged and is removed", stage.value, key)
            self.store.remove(stage, key)
            raise

    def tensors(self, stage: StageName, key: str, contract: Contract, clip: Clip) -> dict[str, Tensor]:
        """The tensors of another stage's artifact on the host, after digest, shape, dtype and finiteness were checked.

        Raises: InputError when that stage has not run, CorruptedArtifactError, ContractError.
        """
        manifest = self.store.find(stage, key)
        if manifest is None:
            raise missing_input(stage, clip)
        specs = manifest.payloads[TENSORS].tensors or {}
        check_contract(specs, contract, f"{stage.value}/{key}")
        return load_tensors(self.payload(stage, key, TENSORS), specs=specs)


def missing_input(stage: StageName, clip: Clip) -> InputError:
    """The error for a stage whose input artifact is not in the store."""
    return InputError(
        f"clip {clip.short_id}: no {stage.value} artifact in the store", hint=f"run the {stage.value} stage first"
    )
