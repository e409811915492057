"""The clips of a report as CSV, safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from magi2.report.plain import plain
from magi2.report.shared import SharedClip, SharedReport
from magi2.types import StageName

COLUMNS: Sequence[str] = (
    *(
        "clip_id",
        "names",
        "state",
        "reused",
        "profile",
        "seed",
        "tags",
        "flags",
        "failed_stage",
        "error_code",
        "reason",
    ),
    *(f"{stage}_seconds" for stage in StageName),
    *("seconds", "accelerator_seconds", "cost", "video", "poster", "missing", "prompt"),
)
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")


def to_csv(shared: SharedReport) -> str:
    """One row for each clip, UTF-8 with a mark that spreadsheets look for; what nobody knows is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    is_known = shared.report.accelerator_seconds is not None
    writer.writerows([_cell(value) for value in _values(clip, is_known)] for clip in shared.clips)
    return "\ufeff" + text.getvalue()


def _values(clip: SharedClip, is_cost_known: bool) -> list[object]:
    reported, stages = clip.reported, clip.reported.stages
    reused = "yes" if reported.reused else "no"
    texts = (", ".join(reported.names), clip.state, reused, reported.profile, reported.seed, ", ".join(clip.tags))
    outcome = (", ".join(reported.flags), reported.stage, reported.error_code, reported.reason)
    seconds = (stages[stage].seconds if stage in stages else None for stage in StageName)
    files = (clip.video, clip.poster, clip.missing)
    accelerator_seconds = reported.accelerator_seconds if is_cost_known else None
    return [
        *(reported.clip_id, *texts, *outcome, *seconds),
        *(clip.seconds, accelerator_seconds, reported.cost, *files, clip.prompt),
    ]


def _cell(value: object) -> object:
    """Numbers as they are; text without control characters, and never a formula to whatever reads the file."""
    if value is None or isinstance(value, int | float):
        return "" if value is None else value
    text = plain(str(value))
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
