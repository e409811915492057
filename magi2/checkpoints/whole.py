"""Whether the weights that clips need are there as a whole, from the names and headers of their files; torch-free."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from magi2.checkpoints.headers import header_of, is_whole, json_object
from magi2.checkpoints.layout import CheckpointFolder
from magi2.config.profile import Profile
from magi2.errors import CheckpointError
from magi2.types import Clip

_AGAIN = "download it again; see magi2 checkpoint verify"


def required_components(profile: Profile, clips: Sequence[Clip]) -> list[str]:
    """The checkpoint components that `clips` need under `profile`."""
    components = ["text_encoder", "preview", "audio_vae"]
    if profile.refiner is not None:
        components.append("refiner")
    uses_wan = profile.decode.decoder == "wan" or any(clip.figures for clip in clips)
    components += ["turbo_vae"] if profile.decode.decoder == "turbo" else []
    return components + (["video_vae"] if uses_wan else [])


def require_whole(profile: Profile, clips: Sequence[Clip], weights: CheckpointFolder) -> None:
    """Raises CheckpointError that names the first file, or tensor of an index, that the clips lack or that is cut."""
    for component in required_components(profile, clips):
        files = weights.files(component)
        _require_indexed(weights.folder(component))
        for path in files:
            if path.suffix == ".safetensors" and not is_whole(path):
                raise CheckpointError(f"{component}: {path} is damaged or cut off", hint=_AGAIN)


def _require_indexed(folder: Path) -> None:
    """Every tensor that an index lists is in the file that it names."""
    for index in sorted(folder.glob("*.safetensors.index.json")):
        listed = (json_object(index) or {}).get("weight_map")
        if not isinstance(listed, dict):
            raise CheckpointError(f"{index}: is no index of tensors", hint=_AGAIN)
        for tensor, name in listed.items():
            if not os.path.isfile(folder / str(name)):
                raise CheckpointError(f"{folder / str(name)} is missing, which {index.name} lists", hint=_AGAIN)
            if tensor not in header_of(folder / str(name)):
                raise CheckpointError(f"{folder / str(name)}: lacks {tensor}, which {index.name} lists", hint=_AGAIN)
