"""A report as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from magi2.batches.failure_groups import FailureGroup
from magi2.batches.schema import Receipt, ReportDocument, ReportedClip, StageCount
from magi2.config.price import amount_text
from magi2.report.defects import flags_with_times


def to_markdown(report: ReportDocument) -> str:
    """The report for people; what users wrote is no markup in it."""
    return "\n".join(_markdown(report)) + "\n"


def _markdown(report: ReportDocument) -> Iterator[str]:
    counts = report.counts
    yield f"# Batch {_cell(report.name)}"
    yield ""
    yield f"Batch `{report.batch_id}`, run `{report.run_id or 'by hand'}`, {counts['seconds']} s."
    yield ""
    yield f"- {counts['clips_done']} clips done"
    yield f"- {report.failure_count}"
    if report.stopped:
        yield f"- {len(report.stopped)} clips left out when the batch stopped"
    if report.budget is not None:
        yield f"- {len(report.over_budget)} clips skipped for lack of budget, which is {_money(report, report.budget)}"
    if report.cancelled:
        yield f"- {len(report.cancelled)} clips cancelled"
    yield f"- {counts['clips_flagged']} clips flagged: finished, but not to be called good"
    if counts["clips_unmeasured"]:
        yield f"- {counts['clips_unmeasured']} finished clips were made by a version that did not look for defects"
    yield f"- {counts['clips_reused']} of the finished clips were reused: this batch made none of their stages"
    yield f"- {counts['stages_computed']} stages computed, {counts['stages_reused']} reused"
    if counts["clips_delivered"]:
        made = f"{counts['clips_marked']} marked as made by AI, {counts['clips_signed']} signed"
        yield f"- {counts['clips_delivered']} clips delivered, {made}"
    yield _cost_line(report)
    for tier, count in _tiers(report).items():
        yield f"- {count} clips of tier {tier}"
    groups = (_group_cells(report, each) for each in report.failure_groups)
    yield from _table("Failures by kind", ("count", "stage", "code", "example", "first clips"), groups)
    yield from _table("Failed", ("clip", "name", "stage", "reason", "prompt"), map(_failed_cells, report.failed))
    yield from _table("Flagged", ("clip", "name", "flags", "prompt"), map(_flagged_cells, report.flagged))
    places = ((clip, receipt) for clip in (*report.done, *report.flagged) for receipt in clip.deliveries)
    yield from _table(
        "Delivered", ("clip", "target", "name", "marked", "signed"), (_delivered_cells(*place) for place in places)
    )
    for title, unrendered in (
        ("Skipped (budget)", report.over_budget),
        ("Skipped (stopped)", report.stopped),
        ("Cancelled", report.cancelled),
    ):
        yield from _table(title, ("clip", "name", "stage", "reason", "prompt"), map(_failed_cells, unrendered))
    header = ("stage", "computed", "reused", "failed", "seconds", "accelerator seconds", "cost")
    yield from _table("Stages", header, (_stage_cells(report, *item) for item in report.stages.items()))
    clips = (*report.failed, *report.flagged, *report.over_budget, *report.stopped, *report.cancelled, *report.done)
    priced = [clip for clip in clips if clip.accelerator_seconds]
    costs = ("clip", "name", "accelerator seconds", "cost")
    yield from _table("Cost", costs, (_cost_cells(report, clip) for clip in priced))


def _cost_line(report: ReportDocument) -> str:
    if report.accelerator_seconds is None:
        return "- cost unknown: the catalog did not say"
    cost = f", {_money(report, report.cost)}" if report.cost is not None else ""
    return f"- {report.accelerator_seconds:,.1f} accelerator-seconds{cost}"


def _tiers(report: ReportDocument) -> Counter[str]:
    """Clips by their tier and the share of the evaluations."""
    clips = (
        *(*report.done, *report.flagged, *report.failed),
        *(*report.over_budget, *report.stopped, *report.cancelled),
    )
    return Counter(clip.tier for clip in clips if clip.tier)


def _stage_cells(report: ReportDocument, stage: str, count: StageCount) -> list[object]:
    seconds = (f"{count.seconds:.1f}", f"{count.accelerator_seconds:.1f}")
    return [stage, count.computed, count.reused, count.failed, *seconds, _money(report, count.cost)]


def _cost_cells(report: ReportDocument, clip: ReportedClip) -> list[object]:
    names = ", ".join(clip.names)
    return [(clip.clip_id or "")[:12], names, f"{clip.accelerator_seconds:.1f}", _money(report, clip.cost)]


def _money(report: ReportDocument, amount: float | None) -> str:
    return "" if amount is None else amount_text(amount, report.currency or "")


def _group_cells(report: ReportDocument, group: FailureGroup) -> list[object]:
    names = {clip.clip_id: ", ".join(clip.names) for clip in report.failed}
    first = "; ".join(names.get(clip) or clip[:12] for clip in group.clips)
    return [group.count, group.stage, group.code, group.example, first]


def _failed_cells(clip: ReportedClip) -> list[object]:
    return [(clip.clip_id or "")[:12], ", ".join(clip.names), clip.stage, clip.reason, clip.prompt]


def _flagged_cells(clip: ReportedClip) -> list[object]:
    return [(clip.clip_id or "")[:12], ", ".join(clip.names), ", ".join(flags_with_times(clip)), clip.prompt]


def _delivered_cells(clip: ReportedClip, receipt: Receipt) -> list[object]:
    marked, signed = ("yes" if value else "no" for value in (receipt.marked, receipt.signed))
    return [(clip.clip_id or "")[:12], receipt.target, receipt.name, marked, signed]


def _table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    lines = [f"| {' | '.join(_cell(value) for value in row)} |" for row in rows]
    if lines:
        yield from ("", f"## {title}", "", f"| {' | '.join(header)} |", "|" + " --- |" * len(header), *lines)


def _cell(value: object) -> str:
    """Text that stays in its cell of a Markdown table and is no markup."""
    text = " ".join(str(value).split())
    return "".join(f"\\{char}" if char in "\\`*[]<>|" else char for char in text)
