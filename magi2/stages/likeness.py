"""How far two delivered clips are from each other: their frames, and the latents that they were decoded from."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from magi2.artifacts.manifest import Manifest
from magi2.artifacts.store import ArtifactStore
from magi2.artifacts.tensors import load_tensors
from magi2.errors import CorruptedArtifactError
from magi2.media.likeness import picture_likeness
from magi2.sampling.search import cosine, relative_l2
from magi2.stages.contracts import TENSORS
from magi2.types import CLIP, StageName


@dataclass(frozen=True)
class ClipLikeness:
    """Of frames and of the preview's latents. None: the frames are equal, or latents are no longer stored or differ in
    shape.
    """

    psnr_db: float | None
    ssim: float
    video_cosine: float | None = None
    video_relative_l2: float | None = None
    audio_cosine: float | None = None
    audio_relative_l2: float | None = None


def clip_likeness(store: ArtifactStore, one: str, other: str) -> ClipLikeness:
    """Of two delivered files, by the keys of their artifacts; distances are relative to the second.

    Raises: CorruptedArtifactError when a file is gone or damaged, MediaError when their pictures cannot be compared.
    """
    pictures = picture_likeness(*(store.fetch(StageName.MUX, key, CLIP) for key in (one, other)))
    latents = [_latents(store, key) for key in (one, other)]
    distances = _distances(*latents) if latents[0] and latents[1] else {}
    return ClipLikeness(pictures.psnr_db, pictures.ssim, **distances)


def _distances(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, float]:
    found = {}
    for name in ("video", "audio"):
        if one[name].shape == other[name].shape:
            found[f"{name}_cosine"] = cosine(one[name], other[name])
            found[f"{name}_relative_l2"] = relative_l2(one[name], other[name])
    return found


def _latents(store: ArtifactStore, key: str) -> dict[str, Tensor]:
    """What the preview made for a delivered file; nothing where that is no longer stored."""
    try:
        decoded = _made_from(store, StageName.MUX, key, "decode")
        preview = decoded and _made_from(store, StageName.DECODE, decoded, "audio")
        manifest = store.find(StageName.PREVIEW, preview) if preview else None
        if manifest is None:
            return {}
        path = store.fetch(StageName.PREVIEW, manifest.key, TENSORS)
        return load_tensors(path, specs=manifest.payloads[TENSORS].tensors or {})
    except CorruptedArtifactError:
        return {}


def _made_from(store: ArtifactStore, stage: StageName, key: str, name: str) -> str | None:
    manifest: Manifest | None = store.find(stage, key)
    return manifest.recipe.inputs.get(name) if manifest else None
