"""The clips of a report as CSV, safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
import re
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
_UNSEEN = (
    r"\s|[\"'\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    r"\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]"
)
"""What nobody sees at the start of a cell: blanks, quotation marks of the format, marks without a width."""
_FORMULA = re.compile(rf"(^|[;|\t\n])(?=(?:{_UNSEEN})*[=+\-@＝＋－＠﹦﹢﹣﹫])")
"""Where a formula would begin, also where a spreadsheet takes another character than the comma to part cells."""


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
    return _FORMULA.sub(r"\1'", plain(str(value)))
