"""The verdicts of many clips as percentages."""

from __future__ import annotations

from collections.abc import Sequence

from demo_world.judge.verdict import SYNC_TOLERANCE_S, Verdict

MEASURES = ("colour", "background", "shape", "motion", "size", "speed", "sound")


def summarise(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Percent right by measure, of the clips whose prompt speaks of it; `all_five`, `sync` and the number of `clips`.

    `sync` is the share of contacts, over all clips that beep as asked, whose beep is near. A measure that no prompt
    speaks of is left out.
    """
    shares = {name: [one.passed[name] for one in verdicts if name in one.passed] for name in MEASURES}
    shares["all_five"] = [one.has_all_five for one in verdicts]
    shares["sync"] = [offset <= SYNC_TOLERANCE_S for one in verdicts for offset in one.offsets]
    percent = {name: round(100 * sum(right) / len(right), 1) for name, right in shares.items() if right}
    return {**percent, "clips": len(verdicts)}
