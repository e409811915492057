"""What the verdicts come to: percent by measure, the targets, seconds per clip, and the clips that are wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from demo_world.judge.summary import MEASURES, summarise
from demo_world.measure.judged import Judged
from demo_world.measure.wanted import KINDS, Kind

PREFIXES: dict[Kind, str] = {"preview": "", "refined": "refined_", "image": "i2v_"}
TARGETS: dict[str, float] = {
    **dict.fromkeys(("colour", "background", "motion", "sound"), 98.0),
    **{"shape": 95.0, "all_five": 92.0, "sync": 90.0, "i2v_colour": 95.0, "i2v_shape": 95.0},
}
"""Percent at least."""
COMPARED = ("refined_all_five", "all_five")
"""What must not be below what."""


@dataclass(frozen=True)
class Target:
    """A measure's lower limit in percent, and what was measured; None where no clip speaks of it."""

    measure: str
    least: float
    measured: float | None

    @property
    def is_missed(self) -> bool:
        """Whether it was measured and is below its limit."""
        return self.measured is not None and self.measured < self.least


def all_figures(judged: Sequence[Judged]) -> dict[str, Any]:
    """Everything for a file: `percent`, `targets`, `seconds_per_clip`, the errors of `failed` clips, `wrong` clips."""
    percent = percentages(judged)
    return {
        "percent": percent,
        "targets": [{**asdict(target), "is_missed": target.is_missed} for target in targets(percent)],
        "seconds_per_clip": seconds_per_clip(judged),
        "failed": {one.wanted.name: one.error for one in judged if one.error is not None},
        "wrong": wrong_clips(judged),
    }


def percentages(judged: Sequence[Judged]) -> dict[str, float]:
    """Percent right by measure, and the number of clips; those of refined clips and of images have a prefix."""
    found: dict[str, float] = {}
    for kind in KINDS:
        verdicts = [one.verdict for one in judged if one.wanted.kind == kind and one.verdict is not None]
        if verdicts:
            found |= {f"{PREFIXES[kind]}{name}": value for name, value in summarise(verdicts).items()}
    return found


def targets(percent: Mapping[str, float]) -> list[Target]:
    """Every target, with what was measured."""
    found = [Target(name, least, percent.get(name)) for name, least in TARGETS.items()]
    refined, unrefined = COMPARED
    if unrefined in percent:
        found.append(Target(refined, percent[unrefined], percent.get(refined)))
    return found


def seconds_per_clip(judged: Sequence[Judged]) -> dict[str, dict[str, float]]:
    """By kind, the mean seconds of each stage and of the whole clip."""
    means: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        taken = [one.seconds for one in judged if one.wanted.kind == kind and one.verdict is not None]
        if taken:
            means[kind] = {stage: round(mean(clip[stage] for clip in taken), 2) for stage in taken[0]}
            means[kind]["whole"] = round(mean(sum(clip.values()) for clip in taken), 2)
    return means


def wrong_clips(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """The clips with anything wrong: what was asked for and what was measured."""
    return [
        {"name": one.wanted.name, "prompt": one.wanted.prompt, "seed": one.wanted.seed, "wrong": one.verdict.wrong}
        | {"asked": asdict(one.wanted.asked), "measured": asdict(one.verdict.measured), "offsets": one.verdict.offsets}
        for one in judged
        if one.verdict is not None and not one.is_right
    ]


def table(percent: Mapping[str, float]) -> str:
    """The percentages for a terminal: a row for each measure, a column for each kind, and the targets."""
    limits = {target.measure: target for target in targets(percent)}
    lines = [f"{'':<12}" + "".join(f"{kind:>16}" for kind in KINDS)]
    for measure in (*MEASURES, "all_five", "sync", "clips"):
        cells = [_cell(f"{PREFIXES[kind]}{measure}", percent, limits) for kind in KINDS]
        lines.append(f"{measure:<12}" + "".join(f"{cell:>16}" for cell in cells))
    return "\n".join(lines)


def _cell(name: str, percent: Mapping[str, float], limits: Mapping[str, Target]) -> str:
    if name not in percent:
        return "-"
    target = limits.get(name)
    return f"{percent[name]:g}" + (f" ({'<' if target.is_missed else '>='} {target.least:g})" if target else "")
