"""A report as one HTML page that works from a disk: no script, no request to anywhere but the clips themselves.

The page is built as a tree and written by a serialiser, so that no text of a user can ever be markup.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit
from xml.etree.ElementTree import Element, tostring

from magi2.batches.schema import ReportDocument
from magi2.config.price import amount_text
from magi2.report.defects import flags_with_times, quality_text
from magi2.report.plain import duration, plain
from magi2.report.shared import SharedClip, SharedReport

UNRENDERED = {
    "failed": "Failures",
    "over_budget": "Not rendered: the budget was spent",
    "stopped": "Not rendered: too many clips had failed",
    "cancelled": "Not rendered: cancelled",
}
"""The lists whose clips have a reason."""
TITLES = {
    "flagged": "Flagged: finished, but not to be called good",
    "done": "Done",
}
"""The lists whose clips have a picture."""
_STYLE = Path(__file__).with_name("page.css").read_text(encoding="utf-8")

Child = Element | str


def to_page(shared: SharedReport) -> str:
    """The whole page."""
    page = _node("html", _head(shared), _node("body", *_body(shared)), lang="en")
    return "<!doctype html>\n" + tostring(page, encoding="unicode", method="html") + "\n"


def _head(shared: SharedReport) -> Element:
    return _node(
        "head",
        _node("meta", charset="utf-8"),
        _node("meta", http_equiv="Content-Security-Policy", content=_policy(shared.clips)),
        _node("meta", name="referrer", content="no-referrer"),
        _node("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _node("title", f"{shared.report.name} ({shared.report.batch_id})"),
        _node("style", _STYLE),
    )


def _policy(clips: Iterable[SharedClip]) -> str:
    """Pictures and clips from where they are and nothing else; the style is allowed by its digest."""
    links = (urlsplit(clip.video) for clip in clips if clip.video)
    hosts = sorted({f"{link.scheme}://{link.netloc}" for link in links if link.netloc})
    style = base64.b64encode(sha256(_STYLE.encode()).digest()).decode()
    media = " ".join(["'self'", "file:", *hosts])
    return f"default-src 'none'; img-src 'self' file:; media-src {media}; style-src 'sha256-{style}'; base-uri 'none'"


def _body(shared: SharedReport) -> Iterator[Element]:
    report = shared.report
    yield _node("h1", _text(report.name))
    run = [
        f"run {report.run_id}" if report.run_id else "by hand",
        f"planned {shared.created_at[:16].replace('T', ' ')} UTC",
    ]
    people = [f"by {shared.requested_by}"] if shared.requested_by else []
    facts = " · ".join([f"batch {report.batch_id}", *run, *people, PurePosixPath(report.source).name])
    yield _node("p", _text(facts), class_="facts")
    if not shared.is_final:
        yield _node("p", "This batch has not ended: what is not finished stands among the failures.", class_="note")
    yield _figures(report)
    yield from _failure_groups(report)
    for state, title in UNRENDERED.items():
        yield from _unrendered(title, [clip for clip in shared.clips if clip.state == state])
    for state in TITLES:
        yield from _clips(state, [clip for clip in shared.clips if clip.state == state])
    yield from _stages(report)
    yield _node("footer", "The same in ", _link("report.json"), " and ", _link("clips.csv"), ".")


def _figures(report: ReportDocument) -> Element:
    failed = str(len(report.failed))
    figures = [
        ("done", str(len(report.done))),
        ("flagged", str(len(report.flagged))),
        *([("not measured", str(unmeasured))] if (unmeasured := report.counts["clips_unmeasured"]) else []),
        ("reused, made before this batch", str(report.counts["clips_reused"])),
        (f"failed of at most {report.failure_limit}{': stopped' if report.failure_count.is_stopped else ''}", failed),
        ("from start to end", duration(report.seconds)),
    ]
    if report.counts["clips_delivered"]:
        names = {"clips_delivered": "delivered", "clips_marked": "marked as made by AI", "clips_signed": "signed"}
        figures += [(label, str(report.counts[name])) for name, label in names.items()]
    figures += [("over budget", str(len(report.over_budget)))] if report.over_budget else []
    figures += [("stopped", str(len(report.stopped)))] if report.stopped else []
    figures += [("cancelled", str(len(report.cancelled)))] if report.cancelled else []
    if report.accelerator_seconds is not None:
        figures.append(("on accelerators", duration(report.accelerator_seconds)))
    if report.cost is not None:
        budget = f", of {_money(report, report.budget)}" if report.budget is not None else ""
        figures.append((f"cost{budget}", _money(report, report.cost)))
    tiles = (_node("div", _node("dd", value), _node("dt", label)) for label, value in figures)
    return _node("dl", *tiles, class_="figures")


def _failure_groups(report: ReportDocument) -> Iterator[Element]:
    rows: list[list[Child]] = [
        [str(each.count), each.stage or "", each.code or "", _text(each.example or ""), _text(each.first)]
        for each in report.failure_groups
    ]
    if rows:
        yield _node("h2", "Failures by kind")
        yield _table(("count", "stage", "code", "example", "first clips"), rows)


def _unrendered(title: str, clips: Sequence[SharedClip]) -> Iterator[Element]:
    rows: list[list[Child]] = [
        [
            _node("code", (clip.reported.clip_id or "")[:12]),
            _text(", ".join(clip.reported.names)),
            clip.reported.stage or "",
            _text(clip.reported.reason or ""),
            _text(clip.reported.prompt),
        ]
        for clip in clips
    ]
    if rows:
        yield _node("h2", title)
        yield _table(("clip", "name", "stage", "reason", "prompt"), rows)


def _stages(report: ReportDocument) -> Iterator[Element]:
    header = ["stage", "computed", "reused", "failed", "seconds"]
    header += ["accelerator-seconds"] if report.accelerator_seconds is not None else []
    header += ["cost"] if report.cost is not None else []
    rows = []
    for stage, count in report.stages.items():
        figures = [str(count.computed), str(count.reused), str(count.failed), f"{count.seconds:,.1f}"]
        costs = [f"{count.accelerator_seconds:,.1f}", _money(report, count.cost)]
        rows.append([stage, *figures, *costs][: len(header)])
    if rows:
        yield _node("h2", "Stages")
        yield _table(header, rows, numbers_from=1)


def _money(report: ReportDocument, amount: float | None) -> str:
    return "" if amount is None else amount_text(amount, report.currency or "")


def _clips(state: str, clips: Sequence[SharedClip]) -> Iterator[Element]:
    if clips:
        yield _node("h2", f"{TITLES[state]} ({len(clips)})")
        yield _node("div", *(_clip(clip) for clip in clips), class_="clips")


def _clip(clip: SharedClip) -> Element:
    reported = clip.reported
    name = ", ".join(reported.names) or (reported.clip_id or "")[:12]
    picture = (
        _node("img", class_="picture", src=clip.poster, alt="", loading="lazy", width="480", height="270")
        if clip.poster
        else _node("span", "no picture", class_="picture none")
    )
    title = _node("div", _text(name), _node("span", ", ".join(reported.flags), class_="flags"), class_="title")
    prompt = _node("div", _text(reported.prompt), class_="below")
    return _node("details", _node("summary", picture, title, prompt), _node("div", *_whole(clip), class_="whole"))


def _whole(clip: SharedClip) -> Iterator[Element]:
    reported = clip.reported
    if clip.video:
        yield _node("video", controls="", preload="none", loading="lazy", poster=clip.poster, src=clip.video)
    else:
        yield _node("p", _text(clip.missing or "no file is kept beside this page"))
    facts = [("clip", (reported.clip_id or "")[:12]), ("profile", reported.profile), ("seed", str(reported.seed))]
    facts += [("tier", reported.tier)] if reported.tier else []
    facts += [("tags", ", ".join(clip.tags))] if clip.tags else []
    facts += [("flags", ", ".join(flags_with_times(reported)))] if reported.flags else []
    facts += [("quality", quality_text(reported))] if reported.stage is None else []
    facts += [("made", "before this batch")] if reported.reused else []
    facts += [("delivered", f"{each.target}: {each.name}") for each in reported.deliveries]
    facts += [(name, f"{each.state}, {each.seconds:.1f} s") for name, each in reported.stages.items()]
    if reported.accelerator_seconds:
        facts.append(("on accelerators", duration(reported.accelerator_seconds)))
    rows = [_node("tr", _node("th", label), _node("td", _text(value))) for label, value in facts]
    yield _node("div", _node("p", _text(clip.prompt), class_="prompt"), _node("table", *rows))


def _table(header: Sequence[str], rows: Iterable[Sequence[Child]], numbers_from: int | None = None) -> Element:
    def style(column: int) -> str | None:
        return "number" if numbers_from is not None and column >= numbers_from else None

    head = _node("tr", *(_node("th", name, scope="col", class_=style(n)) for n, name in enumerate(header)))
    body = (_node("tr", *(_node("td", cell, class_=style(n)) for n, cell in enumerate(row))) for row in rows)
    return _node("div", _node("table", _node("thead", head), _node("tbody", *body)), class_="scroll")


def _link(name: str) -> Element:
    return _node("a", name, href=name)


def _text(text: str) -> Element:
    """What a user wrote, so that its direction of writing does not reach beyond it."""
    return _node("bdi", text)


def _node(tag: str, *children: Child, **attributes: str | None) -> Element:
    names = {"class_": "class", "http_equiv": "http-equiv"}
    given = {names.get(name, name): plain(value) for name, value in attributes.items() if value is not None}
    node = Element(tag, given)
    last: Element | None = None
    for child in children:
        if isinstance(child, Element):
            node.append(child)
            last = child
        elif last is None:
            node.text = (node.text or "") + plain(child)
        else:
            last.tail = (last.tail or "") + plain(child)
    return node
