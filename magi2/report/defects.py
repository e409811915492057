"""The defects of a reported clip in words."""

from __future__ import annotations

from magi2.batches.schema import ReportedClip

SHOWN = 5
"""So many places of a defect are named."""


def flags_with_times(clip: ReportedClip) -> list[str]:
    """The clip's flags; those that are defects with the seconds in which they are, as in `black 2.0-3.1 s`."""
    defects = {defect["kind"]: defect["spans"] for defect in (clip.quality or {}).get("defects", ())}
    return [f"{flag} {_places(defects[flag])}" if flag in defects else flag for flag in clip.flags]


def quality_text(clip: ReportedClip) -> str:
    """How long a finished clip rests and is silent at most, whoever asked for that."""
    if clip.quality is None:
        return "not measured: a version decoded it that did not look for defects"
    told = ((name, clip.quality[f"{name}_s"], clip.quality[f"{name}_share"]) for name in ("still", "silent"))
    return ", ".join(f"{name} for {seconds:.1f} s at a time, {share:.0%} in all" for name, seconds, share in told)


def _places(spans: list[list[float]]) -> str:
    places = [f"{start:.1f}-{end:.1f}" for start, end in spans[:SHOWN]]
    return ", ".join(places) + (" and others s" if len(spans) > SHOWN else " s")
