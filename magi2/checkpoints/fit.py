"""Whether a profile is made for the weights that are here, from the headers of their files; torch-free.

The strict loaders compare every tensor, but only once a stage has begun, which may be after 56 GB were read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from magi2.checkpoints.headers import header_of, json_object
from magi2.checkpoints.layout import CheckpointFolder
from magi2.config.load import load_profile, profile_names
from magi2.config.profile import Profile
from magi2.config.settings import Settings
from magi2.errors import CheckpointError, ConfigError
from magi2.models.preview.config import Weights, stored_weights, weights_objection

_INDEX_NAME = "model.safetensors.index.json"
_SINGLE_NAME = "model.safetensors"
_TEXT_EMBEDDER = "pre_adapter.text_embedder.weight"
PREFERRED = {"1080p": "the published ones", "demo": "the demo's", "tiny": "random tiny ones"}
"""Profiles to name first, and whose weights they are made for."""
_LAYER = re.compile(r"block\.layers\.(\d{1,9})\.")

Facts = Mapping[str, object]
"""Component to what tells it from others: layers, then rows and columns of a matrix."""


def require_fit(profile: Profile, weights: CheckpointFolder, configs: Path) -> None:
    """Raise CheckpointError when the weights have other shapes than the profile's networks, naming a profile that fits,
    or lack the format that it wants.

    What is missing or cannot be read says nothing here: whatever needs it names the file.
    """
    found = _facts(weights.root)
    if not _differs(profile, found):
        _require_format(profile, weights)
        return
    other = fitting_profile(weights, configs)
    if other is None:
        advice = f"no profile of {configs} is made for these weights"
    else:
        advice = f"these weights are {PREFERRED.get(other, f'those of profile {other}')}: take --profile {other}"
    raise CheckpointError(f"profile {profile.name} is made for other weights than {weights.root}: {advice}")


def stored_format(weights: CheckpointFolder) -> Weights:
    """The format in which the preview's weights lie; bf16 where nothing is known of them."""
    folder = weights.folder("preview")
    return stored_weights(_names(folder, _listed(folder)))


def _require_format(profile: Profile, weights: CheckpointFolder) -> None:
    if objection := weights_objection(stored_format(weights), profile.compute.weights):
        raise CheckpointError(f"profile {profile.name}: {weights.folder('preview')}: {objection}")


def fitting_profile(weights: CheckpointFolder, configs: Path) -> str | None:
    """The name of a profile that is made for these weights, None when there is none or nothing is known of them."""
    found = _facts(weights.root)
    if "preview" not in found:
        return None
    names = profile_names(configs)
    for name in dict.fromkeys([*(name for name in PREFERRED if name in names), *names]):
        try:
            profile = load_profile(name, configs)
        except ConfigError:  # a broken profile is no advice
            continue
        if not _differs(profile, found):
            return name
    return None


def usual_profile(settings: Settings) -> str:
    """The profile that the deployment's weights are made for, where they are known here; else the published one."""
    found = fitting_profile(CheckpointFolder(settings.ckpt_root), settings.configs) if settings.ckpt_root else None
    return found or next(iter(PREFERRED))


def _differs(profile: Profile, found: Facts) -> bool:
    preview, refiner = profile.architectures.preview, profile.architectures.refiner
    wanted: dict[str, object] = {
        "text_encoder": preview.text_in_channels,
        "preview": (preview.num_layers, preview.stream_width, preview.text_in_channels),
    }
    if profile.refiner is not None:
        wanted["refiner"] = (refiner.num_layers, refiner.hidden_size, refiner.text_in_channels)
    return any(component in found and found[component] != fact for component, fact in wanted.items())


def _facts(root: Path) -> Facts:
    """What the headers say of the components that are there and readable."""
    weights = CheckpointFolder(root)
    found = {name: _transformer(weights.folder(name)) for name in ("preview", "refiner")}
    found["text_encoder"] = _text_width(weights.folder("text_encoder") / "config.json")
    return {component: fact for component, fact in found.items() if fact is not None}


def _transformer(folder: Path) -> object | None:
    listed = _listed(folder)
    header = header_of(folder / str(listed.get(_TEXT_EMBEDDER, _SINGLE_NAME)))
    names = _names(folder, listed)
    embedder = header.get(_TEXT_EMBEDDER)
    shape = embedder.get("shape") if isinstance(embedder, dict) else None
    layers = {int(match[1]) for name in names if (match := _LAYER.match(name))}
    return (max(layers) + 1, *shape) if layers and isinstance(shape, list) else None


def _listed(folder: Path) -> Mapping[str, object]:
    """What the folder's index says where tensors are; nothing where there is none."""
    index = json_object(folder / _INDEX_NAME)
    listed = index.get("weight_map") if index else None
    return listed if isinstance(listed, dict) else {}


def _names(folder: Path, listed: Mapping[str, object]) -> list[str]:
    """The tensors of a folder with this index, or of its one file."""
    return [str(name) for name in (listed if _TEXT_EMBEDDER in listed else header_of(folder / _SINGLE_NAME))]


def _text_width(path: Path) -> object | None:
    config = json_object(path) or {}
    text = config.get("text_config", config)
    return text.get("hidden_size") if isinstance(text, dict) else None
