"""The same in plain HTML, for browsers without scripts and for the day an upgrade of Airflow breaks the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from magi2.catalog import ClipState
from magi2.config.price import amount_text
from magi2_airflow.renders.batches import Offset, failures, list_batches, one_batch
from magi2_airflow.renders.clips import list_clips, one_clip, others
from magi2_airflow.renders.contract import Batch, Clip, ClipCard, Defect, StageBar, StageStep
from magi2_airflow.renders.deployment import BatchId, ClipId, PageDeployment, Site
from magi2_airflow.renders.html import Markup, element, link, page, table
from magi2_airflow.renders.links import Links, Root
from magi2_airflow.renders.requests import ClipsWanted

BATCHES = 20
_PAGE = "/plugin/renders"
TIME = "%Y-%m-%d %H:%M UTC"
BATCH_HEADER = ("name", "state", "clips", "done", "failed", "reused", "took", "begun", "by", "")
STAGE_HEADER = ("stage", "done", "reused", "running", "failed", "seconds")
STEP_HEADER = ("stage", "state", "attempt", "seconds", "memory", "host", "error", "flags", "")

router = APIRouter(default_response_class=HTMLResponse)


@router.get("/")
def batches_page(site: Site, links: Root, offset: Offset = 0) -> HTMLResponse:
    """All batches, the newest first."""
    found = list_batches(site, offset=offset, limit=BATCHES)
    rows = (_batch_row(batch, links) for batch in found.batches)
    pager = _pager(f"{links.root}/", offset, BATCHES, found.total, {})
    return page("Renders", links.root, site.media_origin, _warning(site), table(BATCH_HEADER, rows), pager)


@router.get("/batches/{batch_id}")
def batch_page(site: Site, links: Root, batch_id: BatchId, wanted: Annotated[ClipsWanted, Query()]) -> HTMLResponse:
    """A batch: its stages and its clips, those of one state or all."""
    batch = one_batch(site, batch_id)
    found = list_clips(site, links, batch_id, wanted)
    here = f"{links.root}/batches/{batch_id}"
    states = [link(here, f"all {batch.clips.total}")]
    counts = ((state, getattr(batch.clips, state)) for state in ClipState)
    states += [link(f"{here}?state={state}", f"{state} {count}") for state, count in counts if count]
    report = link(f"{links.root}/documents/batches/{batch_id}/report.md", "report")
    chosen = {
        name: str(value)
        for name, value in wanted.model_dump(mode="json", exclude_defaults=True, exclude={"offset"}).items()
    }
    return page(
        batch.name or batch_id,
        links.root,
        site.media_origin,
        _warning(site),
        _trail(links, link(f"{links.root}/", "all batches"), batch=batch_id),
        element(
            "p", f"{batch.state}, begun {batch.created_at:{TIME}} by {batch.started_by or 'hand'}, {_money(batch)}"
        ),
        "" if batch.is_live or not batch.clips.total else element("p", report),
        *_standing(batch),
        *_failed(site, links, batch),
        *_refusals(site, links, batch),
        table(STAGE_HEADER, map(_stage_row, batch.stages)),
        element("nav", *(part for state in states for part in (state, " "))),
        _grid(found.clips, links),
        _pager(here, wanted.offset, wanted.limit, found.total, chosen),
    )


def _standing(batch: Batch) -> list[Markup]:
    """What stands beside the state: failures with their limit, and why the batch waits."""
    told = [batch.failures] if batch.clips.failed or batch.refused_rows else []
    told += [f"paused: {batch.paused_because}"] if batch.paused_because else []
    return [element("p", each) for each in told]


def _failed(site: PageDeployment, links: Links, batch: Batch) -> list[Markup]:
    """The failed clips by stage and error; none where none failed."""
    if not batch.clips.failed:
        return []
    here = f"{links.root}/batches/{batch.batch_id}"
    rows = []
    for each in failures(site, links, batch.batch_id).groups:
        wanted = {"state": "failed", "stage": each.stage, "error_code": each.error_code}
        query = urlencode({name: value for name, value in wanted.items() if value})
        shown = link(f"{here}?{query}", "show")
        rows.append([each.count, each.stage or "", each.error_code or "", each.reason or "", shown])
    return [element("h2", "Failures"), table(("clips", "stage", "error", "for example", ""), rows)]


def _refusals(site: PageDeployment, links: Links, batch: Batch) -> list[Markup]:
    """The rows that were refused, and why; none where there are none."""
    if not batch.refused_rows:
        return []
    refused = failures(site, links, batch.batch_id).refused
    rows = ((f"row {each.row}" if each.row else "the file", each.reason) for each in refused)
    return [element("h2", "Refused"), table(("", "reason"), rows)]


@router.get("/batches/{batch_id}/clips/{clip_id}")
def clip_page(site: Site, links: Root, batch_id: BatchId, clip_id: ClipId) -> HTMLResponse:
    """A clip: player, prompt, timeline, and what it can be compared with."""
    clip = one_clip(site, links, batch_id, clip_id)
    alike = others(site, links, batch_id, clip_id).clips
    return page(
        ", ".join(clip.names) or clip_id[:12],
        links.root,
        site.media_origin,
        _warning(site),
        _trail(links, link(f"{links.root}/batches/{batch_id}", "the batch"), batch=batch_id, clip=clip_id),
        *_player(clip),
        _facts(clip),
        *(element("img", src=figure.image, alt=f"figure {figure.number}") for figure in clip.figures),
        element("h2", "Stages"),
        table(STEP_HEADER, (_step_row(step, links) for step in clip.timeline)),
        *((element("h2", "Other profiles and seeds"), _grid(alike, links)) if alike else ()),
    )


def _warning(site: PageDeployment) -> Markup:
    problems = (site.store_check.problem(), *site.airflow_check.problems())
    shown = [element("p", problem, class_="problem", role="alert") for problem in problems if problem]
    return element("div", *shown) if shown else Markup("")


def _trail(links: Links, up: Markup, **place: str) -> Markup:
    return element("nav", up, " | ", link(links.airflow(f"{_PAGE}?{urlencode(place)}"), "the page with actions"))


def _batch_row(batch: Batch, links: Links) -> list[object]:
    run = link(links.airflow(batch.run_path), "run") if batch.run_path else ""
    name = link(f"{links.root}/batches/{batch.batch_id}", batch.name or batch.batch_id)
    clips = batch.clips
    counts = [clips.total, clips.done, clips.failed, clips.reused]
    return [name, batch.state, *counts, _money(batch), f"{batch.created_at:{TIME}}", batch.started_by or "", run]


def _stage_row(bar: StageBar) -> list[object]:
    return [bar.stage, f"{bar.done} of {bar.total}", bar.reused, bar.running, bar.failed, f"{bar.seconds:.1f}"]


def _step_row(step: StageStep, links: Links) -> list[object]:
    seconds = "" if step.seconds is None else f"{step.seconds:.1f}"
    memory = "" if step.peak_memory_bytes is None else f"{step.peak_memory_bytes / 2**30:.1f} GiB"
    ways = [link(step.manifest, "manifest")] if step.manifest else []
    ways += [link(links.airflow(step.log_path), "log")] if step.log_path else []
    told = [step.error or "", ", ".join(step.flags), element("span", *(part for way in ways for part in (way, " ")))]
    return [step.stage, step.state, step.attempt or "", seconds, memory, step.host or "", *told]


def _grid(clips: Iterable[ClipCard], links: Links) -> Markup:
    return element("ul", *(element("li", *_card(clip, links)) for clip in clips), class_="grid")


def _card(clip: ClipCard, links: Links) -> list[Markup]:
    address = f"{links.root}/batches/{clip.batch_id}/clips/{clip.clip_id}"
    poster = element("img", src=clip.media.thumbnail, alt="", loading="lazy") if clip.media else Markup("")
    state = f"{clip.state} in {clip.failed_stage}: {clip.reason}" if clip.failed_stage else clip.state
    names = [*clip.names, clip.clip_id[:12]] if clip.shares_name else clip.names
    title = link(address, ", ".join(names) or clip.clip_id[:12])
    facts = f"{clip.profile}, seed {clip.seed}, {', '.join([state, *_work(clip), *clip.flags])}"
    play = element("div", link(clip.media.clip, "play")) if clip.media else Markup("")
    return [poster, element("div", title), element("div", facts), play, element("div", clip.prompt)]


def _work(clip: ClipCard) -> list[str]:
    if clip.work is None:
        return []
    steps = f" step {clip.work.step} of {clip.work.steps}" if clip.work.steps else ""
    return [f"{clip.work.stage}{steps}"]


def _player(clip: Clip) -> list[Markup]:
    if clip.media is None:
        return []
    video = element("video", src=clip.media.clip, poster=clip.media.poster, controls="", preload="metadata")
    sheet = element("img", src=clip.media.contact_sheet, alt="frames of the clip", loading="lazy")
    return [video, element("p", link(clip.media.download, "download")), sheet]


def _facts(clip: Clip) -> Markup:
    state = f"{clip.state} in {clip.failed_stage}: {clip.reason}" if clip.failed_stage else clip.state
    facts = {
        "state": ", ".join([state, *_work(clip), *clip.flags]),
        "defects": "; ".join(map(_defect, clip.quality.defects)) if clip.quality else "",
        "prompt": clip.prompt,
        "caption": clip.caption or clip.store_problem,
        "seed": clip.seed,
        "profile": f"{clip.profile} (experimental)" if clip.is_experimental else clip.profile,
        "tier": clip.tier,
        "tags": ", ".join(clip.tags),
        "delivery": ", ".join(f"{each.target}: {each.name}" for each in clip.deliveries),
        "id": clip.clip_id,
    }
    pairs = ((element("dt", name), element("dd", value)) for name, value in facts.items() if value not in (None, ""))
    return element("dl", *(part for pair in pairs for part in pair))


def _defect(defect: Defect) -> str:
    return f"{defect.kind} {', '.join(f'{start:.1f}-{end:.1f} s' for start, end in defect.spans)}"


def _money(batch: Batch) -> str:
    amounts = {"cost": batch.cost, "budget": batch.budget}
    told = [
        f"{name} {amount_text(value, batch.currency or '')}" for name, value in amounts.items() if value is not None
    ]
    return ", ".join([f"{batch.accelerator_seconds:.0f} accelerator-seconds", *told])


def _pager(address: str, offset: int, limit: int, total: int, chosen: Mapping[str, str]) -> Markup:
    ways = {"earlier": offset - limit, "further": offset + limit}
    there = {name: max(start, 0) for name, start in ways.items() if -limit < start < total and start != offset}
    links = [link(f"{address}?{urlencode({**chosen, 'offset': start})}", name) for name, start in there.items()]
    shown = f"{min(offset + 1, total)} to {min(offset + limit, total)} of {total} "
    return element("nav", shown, *(part for way in links for part in (way, " ")))
