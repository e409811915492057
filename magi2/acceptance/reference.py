"""Tables of what cards took on which this was measured, and which figures of a node are slower."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from magi2.acceptance.plan import Figure, Outcome

SLOWER = 1.2
"""Times the reference: so much runs on the same kind of card never differ."""
_FOLDER = Path(__file__).parent / "tables"
_MILLISECONDS = "ms"

WHERE_TO_LOOK = {
    "attention": "the attention library: magi2 doctor names it, docs/nodes.md says which are faster",
    "mlp": "the kernels of the experts: magi2 doctor says which compute, the log of the step why others do not",
    "waited": "the links of the cards: the step collectives, docs/parallel.md",
    "picture": "the decoder's convolutions: the card's clock, and whether others use it",
    "clip": "processors and disk of the host: ffmpeg encodes there",
}
"""Ending of a figure's name to where its time goes."""
_ELSEWHERE = "the card's clock, heat and power limit, and whether others use it"


@dataclass(frozen=True)
class Reference:
    """What a card took: figures by `step/name`."""

    card: str
    figures: Mapping[str, Figure]


@cache
def references() -> tuple[Reference, ...]:
    """All tables that are shipped."""
    return tuple(_read(path) for path in sorted(_FOLDER.glob("*.json")))


def _read(path: Path) -> Reference:
    content = json.loads(path.read_bytes())
    figures = {name: Figure(name, **values) for name, values in content["figures"].items()}
    return Reference(content["card"], figures)


def slower_than_reference(outcome: Outcome) -> Outcome:
    """The outcome, with a line for each figure that took more than 1.2 times as long as in a table.

    A card that has a table is compared by milliseconds. Another is compared by how far it is from the floor that its
    own ceilings set, with the first table, where both know one.
    """
    lines = tuple(_lines(outcome))
    if not lines:
        return outcome
    return replace(outcome, slower=lines, verdict="slower" if outcome.verdict == "passed" else outcome.verdict)


def _lines(outcome: Outcome) -> Iterator[str]:
    own = next((table for table in references() if table.card == outcome.card), None)
    for table in (own,) if own else references()[:1]:
        for figure in outcome.figures:
            known = table.figures.get(f"{outcome.step}/{figure.name}")
            ratio = _ratio(figure, known, is_same_card=own is not None) if known else None
            if known and ratio is not None and ratio > SLOWER:
                by = f"{known.value:g} {known.unit}" if own else "its distance from what the card allows"
                line = f"{figure.name}: {figure.value:.4g} {figure.unit}, {ratio:.2f} times {table.card} ({by})"
                yield f"{line}; look at {where_to_look(figure.name)}"


def _ratio(figure: Figure, known: Figure, *, is_same_card: bool) -> float | None:
    """How many times as long as in the table; None where the two cannot be compared."""
    if figure.unit != _MILLISECONDS or known.unit != _MILLISECONDS:
        return None
    value, reference = float(figure.value), float(known.value)
    if is_same_card:
        return value / reference
    if figure.floor is None or known.floor is None:
        return None
    return value / figure.floor / (reference / known.floor)


def where_to_look(name: str) -> str:
    """What decides a figure."""
    return next((text for ending, text in WHERE_TO_LOOK.items() if name.endswith(ending)), _ELSEWHERE)
