"""What a clip of each profile will take and cost here, by what the steps have measured."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from magi2.acceptance.plan import Figure, Outcome
from magi2.config.price import Price
from magi2.config.profile import Profile, Sized
from magi2.parallel.layout import ParallelLayout
from magi2.recipes.book import delivered_frames
from magi2.sampling.schedule import GUIDED

NIGHT_H = 10
BESIDE = "mux"
"""The part that holds no accelerator: another clip is on it meanwhile."""


@dataclass(frozen=True)
class Part:
    """Seconds of a part of a clip on so many accelerators; `extrapolated` where they were not measured as a whole."""

    seconds: float
    extrapolated: bool
    accelerators: int


@dataclass(frozen=True)
class Expectation:
    """Of one profile. `parts` are None where their step was not run; nothing follows then, and `missing` names them.

    `seconds` are those in which a clip holds accelerators, without loading weights.
    """

    profile: str
    parts: Mapping[str, Part | None]
    missing: tuple[str, ...]
    seconds: float | None = None
    clips_a_night: int | None = None
    cost: str | None = None

    @property
    def extrapolated(self) -> tuple[str, ...]:
        """Parts that were not measured as a whole."""
        return tuple(name for name, part in self.parts.items() if part and part.extrapolated)

    def to_json(self) -> dict[str, Any]:
        """For the report."""
        return asdict(self)


def expectation(
    profile: Profile, outcomes: Sequence[Outcome], layout: ParallelLayout, price: Price | None
) -> Expectation:
    """What a clip of the profile takes under the layout of the measured steps."""
    figures = {f"{outcome.step}/{figure.name}": figure for outcome in outcomes for figure in outcome.figures}
    parts = _parts(profile, figures, layout.num_ranks)
    held = {name: part for name, part in parts.items() if name != BESIDE}
    missing = tuple(name for name, part in held.items() if part is None)
    if missing:
        return Expectation(profile.name, parts, missing)
    known = [part for part in held.values() if part]
    seconds = sum(part.seconds for part in known)
    accelerator_seconds = sum(part.seconds * part.accelerators for part in known)
    return Expectation(
        profile.name,
        parts,
        (),
        seconds=round(seconds, 1),
        clips_a_night=int(NIGHT_H * 3600 / seconds),
        cost=price.text(price.cost(accelerator_seconds)) if price else None,
    )


def _parts(profile: Profile, figures: Mapping[str, Figure], ranks: int) -> dict[str, Part | None]:
    preview, refiner = profile.preview, profile.refiner
    guided_steps = preview.evaluated.evaluations(preview.steps) / GUIDED
    parts = {
        "encode": _part(figures.get("text/prompt"), 1.0, 1),
        "preview": _part(_step(figures, "preview", preview), guided_steps, ranks),
    }
    if refiner:
        parts["refine"] = _part(_step(figures, "refiner", refiner), float(refiner.steps), ranks)
    decoded = refiner or preview
    parts["decode"] = _by_pixels(figures, "decode", decoded.width * decoded.height * delivered_frames(profile), 1)
    width, height = profile.delivered_size
    parts["mux"] = _by_pixels(figures, "mux", width * height * delivered_frames(profile), 0)
    return parts


def _step(figures: Mapping[str, Figure], step: str, size: Sized) -> Figure | None:
    """A whole step at this size, or at one of as many pixels, which takes as long."""
    for name, figure in figures.items():
        if match := re.fullmatch(rf"{step}/(\d+)x(\d+)\.whole_step", name):
            width, height = map(int, match.groups())
            if width * height == size.width * size.height:
                return figure
    return None


def _part(figure: Figure | None, times: float, accelerators: int) -> Part | None:
    if figure is None:
        return None
    return Part(float(figure.value) * times / 1e3, figure.extrapolated, accelerators)


def _by_pixels(figures: Mapping[str, Figure], step: str, wanted: int, accelerators: int) -> Part | None:
    """A part that was measured at one size, in proportion to the pixels of all frames."""
    measured = figures.get(f"{step}/pixels")
    if measured is None:
        return None
    times = wanted / float(measured.value)
    part = _part(figures.get(f"{step}/clip"), times, accelerators)
    return part and Part(part.seconds, part.extrapolated or times != 1, accelerators)
