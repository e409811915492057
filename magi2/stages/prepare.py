"""Everything that can fail for want of a file or a program is tried here, before any weight is loaded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch

from magi2 import platform
from magi2.artifacts.address import open_store
from magi2.artifacts.store import ArtifactStore
from magi2.checkpoints.layout import CheckpointFolder
from magi2.checkpoints.whole import required_components
from magi2.config.profile import Profile
from magi2.config.settings import Settings
from magi2.errors import ConfigError
from magi2.media.fitness import fit_ffmpeg
from magi2.models.preview.config import BF16
from magi2.recipes.load import endpoint_settings, recipe_book
from magi2.stages.context import StageContext
from magi2.stages.layouts import check_layout
from magi2.stages.progress import Progress, Silent
from magi2.stages.team import Team
from magi2.types import Clip

logger = logging.getLogger(__name__)


def prepare(
    profile: Profile,
    settings: Settings,
    clips: Sequence[Clip],
    *,
    progress: Progress | None = None,
    store_opener: Callable[[], ArtifactStore] | None = None,
    team: Team | None = None,
) -> StageContext:
    """The surroundings in which `clips`, all of `profile`, can be rendered.

    `store_opener` is called once programs, weights and device are there; by default the store is that of `settings`.
    `team` is this rank's, whose device is open; by default it works alone. Raises: ConfigError, CheckpointError,
    MissingToolError or InfrastructureError, whichever is met first.
    """
    ffmpeg = fit_ffmpeg(settings.ffmpeg, profile.delivery)
    weights = CheckpointFolder(settings.checkpoint_root())
    components = required_components(profile, clips)
    weights.require(components)
    weights.require_filled(components)
    team = team or Team.alone(open_device(settings))
    check_layout(team.mesh.layout, profile)
    device = team.mesh.device
    accelerator = platform.current(device.type)
    if profile.noise_device == "accelerator" and accelerator.name == "cpu":
        raise ConfigError(f"profile {profile.name}: noise_device is accelerator, but there is none here")
    if profile.compute.weights != BF16 and (refusal := platform.fp8_refusal(accelerator=accelerator)):
        raise ConfigError(f"profile {profile.name}: {refusal}")
    platform.disable_tf32()
    platform.set_deterministic(settings.deterministic)
    store = store_opener() if store_opener else open_store(settings.store)
    return StageContext(
        book=recipe_book(profile, settings, weights),
        store=store,
        weights=weights,
        accelerator=accelerator,
        device=device,
        ffmpeg=ffmpeg,
        team=team,
        snapshot_every=settings.snapshot_every,
        shows_pictures=settings.preview_pictures,
        endpoint=endpoint_settings(settings),
        progress=progress or Silent(),
    )


def open_device(settings: Settings, *, rank: int = 0, ranks: int = 1) -> torch.device:
    """This rank's device, made ready: that of MAGI2_DEVICE or the first one, and the one of its number among many.

    Raises: ConfigError when there is no such device, or fewer than ranks.
    """
    name, _, index = (settings.device or "").partition(":")
    accelerator = platform.current(name or None)
    if index and not index.isdigit():
        raise ConfigError(f"MAGI2_DEVICE ends in {index!r}, which is no device number")
    if ranks == 1:
        return platform.activate(accelerator, index=int(index) if index else None)
    if index:
        raise ConfigError(f"MAGI2_DEVICE={settings.device} is one device, the layout needs {ranks}")
    if accelerator.name != "cpu" and platform.device_count(accelerator=accelerator) < ranks:
        found = platform.device_count(accelerator=accelerator)
        raise ConfigError(f"the layout needs {ranks} accelerators, there are {found}", hint="choose a smaller layout")
    return platform.activate(accelerator, index=rank)
