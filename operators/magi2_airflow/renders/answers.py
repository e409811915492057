"""From the catalog's records to the bodies of the contract."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from magi2.catalog import BatchRecord, BatchState, ClipState, Request, Run, RunState
from magi2.catalog.counts import BatchCounts, StageCounts
from magi2.catalog.pages import ListedClip
from magi2.catalog.states import UNFINISHED_BATCH
from magi2.config.price import Price
from magi2.quality.defects import Judgement
from magi2.types import StageName
from magi2_airflow.renders.contract import Batch, ClipCard, Quality, StageBar, StageStep, Work
from magi2_airflow.renders.deployment import PageDeployment
from magi2_airflow.renders.links import Links, run_path, task_path


def batches(site: PageDeployment, records: Sequence[BatchRecord]) -> list[Batch]:
    """The batches with their numbers. Raises InfrastructureError when the catalog does not answer."""
    counts = site.counts.of(records)
    return [batch(record, counts[record.batch_id], site) for record in records]


def batch(record: BatchRecord, counts: BatchCounts, site: PageDeployment) -> Batch:
    """One batch with its numbers."""
    price, is_live = site.price, record.state in UNFINISHED_BATCH
    failures = record.failures(counts.clips.failed + counts.refused_rows)
    is_going_on = record.state is BatchState.RUNNING and record.requested is None
    return Batch(
        batch_id=record.batch_id,
        name=record.name,
        source=record.source,
        state=record.state,
        is_live=is_live,
        is_paused=is_live and record.requested is Request.PAUSE,
        is_cancel_requested=is_live and record.requested is Request.CANCEL,
        priority=record.priority,
        clips=counts.clips,
        stages=[_bar(stage, numbers) for stage, numbers in counts.stages.items()],
        seconds_left=counts.seconds_left(datetime.now(UTC)) if is_going_on else None,
        accelerator_seconds=counts.accelerator_seconds,
        cost=cost(price, counts.accelerator_seconds),
        budget=record.budget,
        currency=site.settings.currency if price or record.budget is not None else None,
        started_by=record.requested_by,
        created_at=record.created_at,
        finished_at=record.finished_at,
        failure_limit=record.failure_limit,
        failures=str(failures),
        is_stopped=failures.is_stopped,
        paused_because=site.catalog.control.pause_reason(record),
        refused_rows=counts.refused_rows,
        dag_id=record.dag_id,
        run_id=record.run_id,
        run_path=run_path(record.dag_id, record.run_id),
        parent_batch_id=record.parent_batch_id,
    )


def card(clip: ListedClip, price: Price | None, links: Links) -> ClipCard:
    """A clip in a list."""
    return ClipCard(
        batch_id=clip.batch_id,
        clip_id=clip.clip_id,
        names=list(clip.names),
        shares_name=clip.shares_name,
        prompt=clip.prompt,
        tags=list(clip.tags),
        profile=clip.profile_name,
        seed=clip.seed,
        shard=clip.shard,
        priority=clip.priority,
        state=clip.state,
        failed_stage=clip.failed_stage,
        reason=clip.reason,
        flags=list(clip.flags),
        is_measured=clip.is_measured,
        seconds=clip.seconds,
        accelerator_seconds=clip.accelerator_seconds,
        cost=cost(price, clip.accelerator_seconds),
        updated_at=clip.updated_at,
        work=_work(clip, links),
        media=links.media(clip.artifact_key),
    )


def _work(clip: ListedClip, links: Links) -> Work | None:
    if clip.work is None:
        return None
    stage, step = clip.work.stage, clip.work.step
    picture = links.picture(clip.batch_id, clip.clip_id, step) if stage is StageName.PREVIEW and step else None
    return Work(stage=stage.value, step=step, steps=clip.work.steps, picture=picture)


def quality(judgement: Judgement | None) -> Quality | None:
    """How a clip is judged."""
    return None if judgement is None else Quality(**judgement.to_json())


def timeline(
    record: BatchRecord,
    clip: ListedClip,
    runs: Sequence[Run],
    stages: Iterable[StageName],
    price: Price | None,
    links: Links,
) -> list[StageStep]:
    """Every attempt at every stage of the clip, in order; a stage without one is there as well."""
    run, steps = run_path(record.dag_id, record.run_id), []
    was_found = clip.state is ClipState.DONE and clip.shard is None
    for stage in stages:
        attempts = [each for each in runs if each.stage is stage]
        manifest = None if stage is StageName.DELIVER else links.manifest(clip.batch_id, clip.clip_id, stage)
        if not attempts:
            found = manifest if was_found and stage is StageName.MUX else None
            state = RunState.REUSED.value if was_found else ClipState.WAITING.value
            steps.append(StageStep(stage=stage.value, state=state, attempt=0, is_last=True, manifest=found))
        for each in attempts:
            task = task_path(run, stage, each.shard)
            steps.append(_step(each, each is attempts[-1], manifest, task, price))
    return steps


def cost(price: Price | None, accelerator_seconds: float | None) -> float | None:
    """What these seconds cost; None without a price."""
    return None if price is None or accelerator_seconds is None else price.cost(accelerator_seconds)


def _step(run: Run, is_last: bool, manifest: str | None, task: str | None, price: Price | None) -> StageStep:
    return StageStep(
        stage=run.stage.value,
        state=run.state,
        attempt=run.attempt,
        is_last=is_last,
        started_at=run.started_at,
        finished_at=run.finished_at,
        seconds=run.seconds,
        accelerator_seconds=run.accelerator_seconds,
        cost=cost(price, run.accelerator_seconds),
        peak_memory_bytes=run.peak_memory_bytes,
        host=run.host,
        error_code=run.error_code,
        error=run.error,
        flags=list(run.flags),
        manifest=manifest if run.artifact_key else None,
        task_path=task,
        log_path=f"{task}?try_number={run.attempt}" if task else None,
    )


def _bar(stage: StageName, counts: StageCounts) -> StageBar:
    return StageBar(
        stage=stage.value,
        total=counts.total,
        done=counts.done,
        reused=counts.reused,
        running=counts.running,
        failed=counts.failed,
        seconds=counts.seconds,
        accelerator_seconds=counts.accelerator_seconds,
        peak_memory_bytes=counts.peak_memory_bytes,
    )
