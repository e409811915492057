"""What an acceptance is asked for, in which steps, and what a step says; torch-free."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from magi2 import __version__
from magi2.config.strict import nearest
from magi2.errors import InputError
from magi2.models.preview.config import BF16, Weights

Verdict = Literal["passed", "slower", "differs", "failed", "not run"]
Devices = Literal["none", "one", "layout"]
DONE: frozenset[Verdict] = frozenset({"passed", "slower", "differs"})
"""Verdicts of steps that came to their end: they are not run again."""


@dataclass(frozen=True)
class Step:
    """A step: what it shows, the accelerators that it computes on (of a whole layout: one rank on each), and what to do
    when it does not pass."""

    name: str
    shows: str
    devices: Devices
    advice: str


STEPS = (
    Step("tools", "accelerator, libraries, ffmpeg", "one", "install what is named: docs/nodes.md"),
    Step("weights", "every component against its table", "none", "magi2 checkpoint verify names file and tensor"),
    Step("store", "store and catalog, round trip", "none", "magi2 doctor; docs/deployment.md"),
    Step("airflow", "pools, plugin, queues", "none", "magi2 airflow setup; magi2 doctor --airflow"),
    Step("kernels", "kernels against plain torch", "one", "magi2 doctor says which compute; send the report"),
    Step("collectives", "what ranks exchange, right and fast", "layout", "docs/parallel.md; how are the cards linked?"),
    Step("text", "the text encoder", "one", "magi2 doctor; is the card shared with others?"),
    Step("preview", "a step of the preview by size", "layout", "docs/nodes.md: attention and kernels at work"),
    Step("refiner", "a step of the refiner", "layout", "docs/nodes.md: kernels at work; docs/parallel.md"),
    Step("decode", "decoding of one clip", "one", "magi2 doctor; is the card shared with others?"),
    Step("mux", "encoding of one clip", "none", "magi2 doctor; are there idle processors?"),
    Step("rehearse", "three clips through Airflow", "none", "the run's log in Airflow, or its page Renders"),
)
"""All steps, cheap ones first."""


@dataclass(frozen=True)
class Options:
    """What all steps are told. Steps of other options are other steps: they run anew.

    `layers`, if given, limits those that are built; `layout` None is the deployment's; `weights` is the format of the
    preview's.
    """

    profiles: tuple[str, ...]
    layout: str | None = None
    random_weights: bool = False
    layers: int | None = None
    fingerprint: bool = False
    weights: Weights = BF16

    @property
    def key(self) -> str:
        """What tells them from others, this version of the program included."""
        content = json.dumps([__version__, asdict(self)], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Options:
        """The options that `asdict` gave."""
        return cls(**{**values, "profiles": tuple(values["profiles"])})


@dataclass(frozen=True)
class Figure:
    """Something measured, or true of this node. `floor` is the least by the card's own ceilings, in the same unit.

    `extrapolated` says that it was computed from what was measured.
    """

    name: str
    value: float | int | str | bool
    unit: str = ""
    floor: float | None = None
    extrapolated: bool = False


@dataclass(frozen=True)
class Difference:
    """Something that is not as it must be."""

    text: str


Found = Figure | Difference


class NotRunError(Exception):
    """A step cannot be run here, for the reason it gives."""


@dataclass(frozen=True)
class Outcome:
    """What came of a step. `reason` is why it failed or was not run; `card` names the accelerator that computed."""

    step: str
    verdict: Verdict
    seconds: float
    key: str = ""
    card: str | None = None
    figures: tuple[Figure, ...] = ()
    differences: tuple[str, ...] = ()
    slower: tuple[str, ...] = ()
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """For one document."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Outcome:
        """Raises TypeError, KeyError or AttributeError for what `to_json` never gave."""
        figures = tuple(Figure(**figure) for figure in values["figures"])
        lists = {name: tuple(values[name]) for name in ("differences", "slower")}
        return cls(**{**values, **lists, "figures": figures})


@dataclass
class Findings:
    """What a step has found so far."""

    figures: list[Figure] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def add(self, found: Found) -> None:
        """Take one in."""
        if isinstance(found, Figure):
            self.figures.append(found)
        else:
            self.differences.append(found.text)

    def outcome(self, step: str, verdict: Verdict, seconds: float, **more: Any) -> Outcome:
        """As an outcome. A step that came to its end and found differences did not pass."""
        if verdict == "passed" and self.differences:
            verdict = "differs"
        return Outcome(
            step, verdict, round(seconds, 2), figures=tuple(self.figures), differences=tuple(self.differences), **more
        )


def chosen(only: Sequence[str], skipped: Sequence[str]) -> tuple[Step, ...]:
    """The steps of these names, all where none is named, without the skipped ones. Raises InputError for no name."""
    names = [step.name for step in STEPS]
    for name in (*only, *skipped):
        if name not in names:
            raise InputError(f"unknown step {name!r}", hint=nearest(name, names))
    return tuple(step for step in STEPS if step.name in (only or names) and step.name not in skipped)
