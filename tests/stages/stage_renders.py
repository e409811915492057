"""Stores with finished clips, by `render` in one go."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from magi2.config.profile import Profile
from magi2.stages.render import Outcome
from magi2.types import Clip
from tests.render_helpers import Digests, digests, make_clip, make_context, render, small_profile


@dataclass(frozen=True)
class Rendered:
    """A store with finished clips of one profile: from a prompt alone, and without a refiner from an image, too."""

    store: Path
    profile: Profile
    clips: tuple[Clip, ...]
    outcomes: tuple[Outcome, ...]

    @property
    def digests(self) -> list[Digests]:
        return [digests(self.store, outcome) for outcome in self.outcomes]

    def copy(self, target: Path) -> Path:
        """A copy of the store, to be changed."""
        shutil.copytree(self.store, target)
        return target


def render_once(store: Path, checkpoint: Path, image: Path, *, refined: bool) -> Rendered:
    profile = small_profile(refined=refined)
    clips = (make_clip(profile), make_clip(profile, "<Figure 1> turns around", image=image))[: 1 if refined else 2]
    outcomes = render(make_context(checkpoint, store, profile, clips), clips)
    return Rendered(store, profile, clips, tuple(outcomes))
