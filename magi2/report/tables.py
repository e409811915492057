"""The clips of a report as CSV, safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from magi2.plain import plain
from magi2.report.shared import SharedClip
from magi2.types import StageName

STAGES = tuple(stage.value for stage in StageName if stage is not StageName.NEGATIVE)
COLUMNS: Sequence[str] = (
    *("clip_id", "names", "state", "profile", "seed", "tags", "flags", "failed_stage", "error_code", "reason"),
    *(f"{stage}_seconds" for stage in STAGES),
    *("seconds", "accelerator_seconds", "cost", "video", "poster", "missing", "prompt"),
)
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")


def to_csv(clips: Sequence[SharedClip]) -> str:
    """One row for each clip, UTF-8 with a mark that spreadsheets look for."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    writer.writerows([_cell(value) for value in _values(clip)] for clip in clips)
    return "\ufeff" + text.getvalue()


def _values(clip: SharedClip) -> list[object]:
    reported, stages = clip.reported, clip.reported.stages
    texts = (", ".join(reported.names), clip.state, reported.profile, reported.seed, ", ".join(clip.tags))
    outcome = (", ".join(reported.flags), reported.stage, reported.error_code, reported.reason)
    seconds = (stages[stage].seconds if stage in stages else None for stage in STAGES)
    files = (clip.video, clip.poster, clip.missing)
    return [
        *(reported.clip_id, *texts, *outcome, *seconds),
        *(clip.seconds, clip.accelerator_seconds, clip.cost, *files, clip.prompt),
    ]


def _cell(value: object) -> object:
    """Numbers as they are; text without control characters, and never a formula to whatever reads the file."""
    if value is None or isinstance(value, int | float):
        return "" if value is None else value
    text = plain(str(value))
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
