"""The report of an acceptance, for programs and for people: what to attach when somebody asks how a node does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magi2 import __version__
from magi2.acceptance.expect import NIGHT_H, Expectation
from magi2.acceptance.plan import STEPS, Figure, Options, Outcome
from magi2.acceptance.scrub import Scrubber
from magi2.files import disk_errors, partial_file
from magi2.models.preview.config import BF16

REPORT_JSON, REPORT_TEXT = "report.json", "report.md"
_ADVICE = {step.name: step.advice for step in STEPS}
_SHOWS = {step.name: step.shows for step in STEPS}
_BAD = ("differs", "failed")


@dataclass(frozen=True)
class Report:
    """All outcomes there are, what follows from them, and for how many ranks."""

    options: Options
    layout: str
    outcomes: Sequence[Outcome]
    expectations: Sequence[Expectation]

    @property
    def is_accepted(self) -> bool:
        """Whether no step failed or found a difference. Steps that were not run are no fault, and no proof."""
        return not any(outcome.verdict in _BAD for outcome in self.outcomes)

    @property
    def summary(self) -> str:
        """One line: how many steps ended how."""
        verdicts = [outcome.verdict for outcome in self.outcomes]
        return ", ".join(f"{verdicts.count(each)} {each}" for each in dict.fromkeys(verdicts)) or "nothing was run"

    @property
    def weights(self) -> str:
        """Whether weights were given, and the format of the preview's where it is not the published one."""
        named = "" if self.options.weights == BF16 else f" {self.options.weights}"
        return ("random" if self.options.random_weights else "given") + named

    def to_json(self) -> dict[str, Any]:
        """Everything."""
        return {
            "version": __version__,
            "accepted": self.is_accepted,
            "summary": self.summary,
            "profiles": list(self.options.profiles),
            "layout": self.layout,
            "weights": self.weights,
            "steps": [
                {
                    "step": outcome.step,
                    "verdict": outcome.verdict,
                    "seconds": outcome.seconds,
                    "card": outcome.card,
                    "reason": outcome.reason,
                    "differences": list(outcome.differences),
                    "slower": list(outcome.slower),
                    "advice": advice(outcome),
                    "figures": {figure.name: _figure_json(figure) for figure in outcome.figures},
                }
                for outcome in self.outcomes
            ],
            "expected": [each.to_json() for each in self.expectations],
        }

    def write(self, folder: Path, scrubber: Scrubber) -> None:
        """Both forms, each replaced as a whole. Raises InfrastructureError."""
        content = scrubber.value(self.to_json())
        texts = {
            REPORT_JSON: json.dumps(content, indent=1, ensure_ascii=False) + "\n",
            REPORT_TEXT: scrubber.text("\n".join(self._lines()) + "\n"),
        }
        for name, text in texts.items():
            with disk_errors(folder), partial_file(folder / name) as partial:
                partial.write_text(text, encoding="utf-8")

    def _lines(self) -> Iterator[str]:
        yield f"# Acceptance: {self.summary}"
        yield ""
        profiles = ", ".join(self.options.profiles)
        yield f"magi2 {__version__}, layout {self.layout}, {self.weights} weights, profiles {profiles}"
        yield ""
        yield "| step | verdict | seconds | |"
        yield "|---|---|---|---|"
        for outcome in self.outcomes:
            shows = f"{outcome.step}: {_SHOWS[outcome.step]}"
            yield f"| {shows} | {outcome.verdict} | {outcome.seconds:g} | {_cell(outcome)} |"
        yield from self._expected()
        for outcome in self.outcomes:
            yield from _details(outcome)

    def _expected(self) -> Iterator[str]:
        if not self.expectations:
            return
        yield ""
        yield f"## A clip here, and a night of {NIGHT_H} hours"
        yield ""
        yield "| profile | seconds | clips a night | cost | parts in seconds | |"
        yield "|---|---|---|---|---|---|"
        for each in self.expectations:
            yield _expected_row(each)
        yield ""
        yield "Seconds in which a clip holds accelerators, without loading weights; muxing runs beside them."


def advice(outcome: Outcome) -> str | None:
    """What to do about a step that is not as it should be."""
    if outcome.verdict == "passed" or outcome.verdict == "not run":
        return None
    return _ADVICE[outcome.step]


def figure_text(figure: Figure) -> str:
    """A figure's value for people."""
    value = f"{figure.value:.4g}" if isinstance(figure.value, float) else str(figure.value)
    text = f"{value} {figure.unit}".rstrip()
    if figure.floor:
        text += f" ({float(figure.value) / figure.floor:.2f} times its floor)"
    return f"{text}, extrapolated" if figure.extrapolated else text


def _figure_json(figure: Figure) -> dict[str, Any]:
    more = {"floor": figure.floor} if figure.floor is not None else {}
    return {"value": figure.value, "unit": figure.unit, **more} | (
        {"extrapolated": True} if figure.extrapolated else {}
    )


def _cell(outcome: Outcome) -> str:
    """What to know of a step in a table."""
    found = [outcome.reason or "", *outcome.differences, *outcome.slower]
    text = "; ".join(" ".join(each.split()) for each in found if each).replace("|", "\\|")
    to_do = advice(outcome)
    return f"{text}. To do: {to_do}" if to_do else text


def _details(outcome: Outcome) -> Iterator[str]:
    if not outcome.figures:
        return
    yield ""
    yield f"## {outcome.step}" + (f" on {outcome.card}" if outcome.card else "")
    yield ""
    yield "| figure | |"
    yield "|---|---|"
    for figure in outcome.figures:
        yield f"| {figure.name} | {figure_text(figure)} |"


def _expected_row(each: Expectation) -> str:
    parts = ", ".join(f"{name} {part.seconds:.1f}" for name, part in each.parts.items() if part)
    notes = [f"not known: {', '.join(each.missing)}"] if each.missing else []
    notes += [f"extrapolated: {', '.join(each.extrapolated)}"] if each.extrapolated else []
    known = "not known" if each.seconds is None else f"{each.seconds:g}"
    night = "" if each.clips_a_night is None else str(each.clips_a_night)
    cost = each.cost or ("" if each.missing else "MAGI2_PRICE_PER_ACCELERATOR_HOUR is not set")
    return f"| {each.profile} | {known} | {night} | {cost} | {parts} | {'; '.join(notes)} |"
