"""What became of a batch: every clip that failed by name, stage and reason."""

from magi2.batches.failures import save_failure
from magi2.batches.schema import ReportDocument, ReportedClip, StageCount
from magi2.errors import reason_of
from magi2.report.build import build_report, save_report
from magi2.report.markdown import to_markdown

__all__ = [
    "ReportDocument",
    "ReportedClip",
    "StageCount",
    "build_report",
    "reason_of",
    "save_failure",
    "save_report",
    "to_markdown",
]
