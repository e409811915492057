"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from magi2.report.records import Report, ReportedClip


def to_markdown(report: Report) -> str:
    """The report for people; what users wrote is no markup in it."""
    return "\n".join(_markdown(report)) + "\n"


def _markdown(report: Report) -> Iterator[str]:
    counts = report.counts
    verdict = "within" if report.is_within_limit else "over"
    yield f"# Batch {_cell(report.name)}"
    yield ""
    yield f"Batch `{report.batch_id}`, run `{report.run_id or 'by hand'}`, {counts['seconds']} s."
    yield ""
    yield f"- {counts['clips_done']} clips done, {counts['clips_skipped']} were finished before"
    yield f"- {counts['clips_failed']} clips failed, {verdict} the limit of {report.failure_limit}"
    yield f"- {counts['clips_flagged']} clips flagged: finished, but not to be called good"
    yield f"- {counts['stages_computed']} stages computed, {counts['stages_reused']} reused"
    yield from _table("Failed", ("clip", "name", "stage", "reason", "prompt"), map(_failed_cells, report.failed))
    yield from _table("Flagged", ("clip", "name", "flags", "prompt"), map(_flagged_cells, report.flagged))
    rows = ([stage, n.computed, n.reused, n.failed, f"{n.seconds:.1f}"] for stage, n in report.stages.items())
    yield from _table("Stages", ("stage", "computed", "reused", "failed", "seconds"), rows)


def _failed_cells(clip: ReportedClip) -> list[object]:
    return [(clip.clip_id or "")[:12], ", ".join(clip.names), clip.stage, clip.reason, clip.prompt]


def _flagged_cells(clip: ReportedClip) -> list[object]:
    return [(clip.clip_id or "")[:12], ", ".join(clip.names), ", ".join(clip.flags), clip.prompt]


def _table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    lines = [f"| {' | '.join(_cell(value) for value in row)} |" for row in rows]
    if lines:
        yield from ("", f"## {title}", "", f"| {' | '.join(header)} |", "|" + " --- |" * len(header), *lines)


def _cell(value: object) -> str:
    """Text that stays in its cell of a Markdown table and is no markup."""
    text = " ".join(str(value).split())
    return "".join(f"\\{char}" if char in "\\`*[]<>|" else char for char in text)
