"""What a step works with: options, settings, profiles, and this rank's device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path

import torch

from magi2 import platform
from magi2.acceptance.plan import Options
from magi2.acceptance.preview_shapes import TEXT_ROWS
from magi2.checkpoints.layout import CheckpointFolder
from magi2.config.load import load_profile
from magi2.config.profile import Profile
from magi2.config.settings import Settings
from magi2.models.preview.config import BF16
from magi2.models.preview.lengths import latent_size
from magi2.parallel.mesh import Mesh
from magi2.stages.contracts import refined_size

Size = tuple[int, int, int]


@dataclass(frozen=True)
class Site:
    """A step's surroundings on one rank. `folder` is for its files, and is removed when it ends.

    Steps that open no device have none.
    """

    options: Options
    settings: Settings
    folder: Path
    mesh: Mesh | None = None

    @cached_property
    def profiles(self) -> tuple[Profile, ...]:
        """Those that are asked for; their networks are of one architecture."""
        format_ = [f"compute.weights={self.options.weights}"] if self.options.weights != BF16 else []
        return tuple(load_profile(name, self.settings.configs, format_) for name in self.options.profiles)

    @property
    def ranks(self) -> Mesh:
        """This rank's place among those that compute."""
        assert self.mesh is not None, "a step that opens a device"
        return self.mesh

    @property
    def device(self) -> torch.device:
        """This rank's device."""
        return self.ranks.device

    @property
    def accelerator(self) -> platform.Accelerator:
        """Of that device."""
        return platform.current(self.device.type)

    @property
    def card(self) -> str | None:
        """What its maker calls that device; None for a step that opens none."""
        return platform.device_name(accelerator=self.accelerator) if self.mesh else None

    @property
    def dtype(self) -> torch.dtype:
        """What the profiles compute in."""
        return torch.bfloat16 if self.profiles[0].compute_dtype == "bfloat16" else torch.float32

    @property
    def text_rows(self) -> int:
        """Tokens of a prompt; a short one where the CPU computes, on which nobody renders long ones."""
        return TEXT_ROWS if self.device.type != "cpu" else TEXT_ROWS // 20

    def weights(self, component: str) -> CheckpointFolder | None:
        """The given weights, None where random ones are to be used, as for hollow ones.

        Raises CheckpointError for some that lack files.
        """
        if self.options.random_weights or self.settings.ckpt_root is None:
            return None
        weights = CheckpointFolder(self.settings.ckpt_root)
        weights.require([component])
        return None if weights.is_hollow(component) else weights

    @property
    def preview_sizes(self) -> Mapping[str, Size]:
        """Latents of the profiles' previews by the size of their pictures, the largest first."""
        found = {
            size_name(profile.preview.width, profile.preview.height): latent_size(
                profile.duration_s, profile.preview.height, profile.preview.width
            )
            for profile in self.profiles
        }
        return largest_first(found)

    @property
    def refined_sizes(self) -> Mapping[str, Size]:
        """Latents that the profiles' refiners compute, likewise."""
        return largest_first(
            {
                size_name(profile.refiner.width, profile.refiner.height): refined_size(profile)
                for profile in self.profiles
                if profile.refiner is not None
            }
        )

    @property
    def largest(self) -> Profile:
        """The profile with the most pixels: its clip is decoded and encoded."""

        def pixels(profile: Profile) -> int:
            decoded = profile.refiner or profile.preview
            return decoded.width * decoded.height

        return max(self.profiles, key=pixels)

    @property
    def decoded_size(self) -> Size:
        """Latents of the largest profile's clip as they come to the decoder."""
        profile = self.largest
        if profile.refiner is not None:
            return refined_size(profile)
        return latent_size(profile.duration_s, profile.preview.height, profile.preview.width)


def size_name(width: int, height: int) -> str:
    """As figures name a picture's size."""
    return f"{width}x{height}"


def largest_first(sizes: dict[str, Size]) -> dict[str, Size]:
    """By latent cells, which is by memory; of those with equally many, which take equally long, one."""
    by_cells = {prod(size): (name, size) for name, size in reversed(sizes.items())}
    return dict(by_cells[cells] for cells in sorted(by_cells, reverse=True))
