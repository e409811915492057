"""Batches of the command line: planned, entered and reported like those of Airflow, by the process that renders them.

The same clips, asked for by the same user of the same host from the same file, are the same batch: a command that was
interrupted goes on with it when it is called again. One process renders it at a time. If that ends without a word,
whoever looks next settles the batch, see `settle_lost`.
"""

from __future__ import annotations

import logging
import math
import os
import pwd
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache

from magi2.artifacts.store import ArtifactStore, Patience, at_once
from magi2.batches.batch_file import Batch
from magi2.batches.documents import (
    batch_name,
    find_document,
    is_planned,
    load_batch,
    load_shard_document,
    newest_attempts,
    remove_batch,
    results_name,
)
from magi2.batches.due import shard_stages
from magi2.batches.failures import save_failure
from magi2.batches.plan import BatchOptions, BatchPlan, batch_id_of, plan_batch, save_plan
from magi2.batches.schema import BatchDocument, ByHand
from magi2.config.profile import Profile
from magi2.deployment import Deployment
from magi2.errors import BatchCancelledError, CorruptedArtifactError, InfrastructureError, InputError, Magi2Error
from magi2.jobs.recorder import CatalogRecorder
from magi2.recipes.book import RecipeBook
from magi2.report.build import build_report, save_report
from magi2.runtime.job import StageJob
from magi2.runtime.lock import HeldLock, work_lock
from magi2.runtime.process import has_ended, this_process
from magi2.types import Clip, StageName

logger = logging.getLogger(__name__)

COMMAND_LINE = "command line"
"""The source of a batch that no file holds."""
_LOCK = "batch"


@dataclass(frozen=True)
class Asked:
    """What a command was asked to render, and from where: a batch file, or the command line itself."""

    clips: Sequence[Clip]
    profiles: Mapping[str, Profile]
    name: str = "prompt"
    source: str = COMMAND_LINE
    options: BatchOptions = field(default_factory=BatchOptions)

    @property
    def batch_id(self) -> str:
        """The id of the batch that these clips are for this user of this host."""
        asked_by = {"requested_by": user_name(), "host": socket.gethostname(), "name": self.name, "source": self.source}
        return batch_id_of(self.clips, BatchOptions(), asked_by)


@dataclass
class BatchByHand:
    """A batch that this process renders; `job` is the stage that it is at."""

    plan: BatchPlan
    attempt: int
    deployment: Deployment
    recorder: CatalogRecorder
    started_at: datetime
    job: StageJob | None = None

    def next_job(self, shard: int, stage: StageName) -> StageJob:
        """The job of a shard's stage, which begins."""
        address, identity = self.deployment.settings.store, self.deployment.store_identity
        place = self.plan.batch_id, shard, stage, address
        force = stage.value in self.plan.options.force
        self.job = StageJob(*place, store_identity=identity, attempt=self.attempt, force=force)
        return self.job

    def stop(self, error: BaseException) -> None:
        """Write down why the batch ends before all of its stages have run."""
        reason = error if isinstance(error, Magi2Error) else _reason(error)
        if self.job and reason is not error:  # else the job has told it
            self.recorder.on_stage_end(self.job, reason)
        _write_failures(self.deployment.store, self.plan.batch_id, reason)

    def report(self) -> None:
        """Write the report and tell the catalog how the batch ended."""
        _report(self.deployment, self.recorder, self.plan.batch_id, started_at=self.started_at)


@contextmanager
def batch_by_hand(
    asked: Asked, deployment: Deployment, *, on_wait: Callable[[], None], patience: Patience = at_once
) -> Iterator[BatchByHand]:
    """The batch of what was asked, planned and entered, with all clips of a profile in one shard; reported at the end.

    While another process of this user renders the same, `on_wait` is called and its end is waited for. `patience` waits
    for a store that is away when the batch begins and when it ends well.
    Raises: what the store, the planner and the block do; an error of the report only where the block raised none.
    """
    batch_id = asked.batch_id
    with batch_lock(deployment, batch_id, on_wait):
        batch = patience(lambda: _begin(asked, batch_id, deployment))
        try:
            yield batch
        except BaseException as error:
            try:
                batch.stop(error)
                batch.report()
            except Magi2Error as second:
                logger.error("batch %s has no report: %s", batch_id, second)
            raise
        patience(batch.report)


def batch_lock(deployment: Deployment, batch_id: str, on_wait: Callable[[], None]) -> AbstractContextManager[HeldLock]:
    """What keeps every other process of this user on this host from the batch; `on_wait` is told that one has it."""
    store = deployment.settings.store
    return work_lock(store, _LOCK, batch_id, timeout_s=math.inf, on_wait=lambda holder: on_wait())


def settle_lost(deployment: Deployment) -> list[str]:
    """End the batches whose process is gone without having ended them, as cancelled; the ids of those.

    What was rendered of them stays, and the same command goes on. Of processes on other hosts nobody here knows.
    Raises: IdentityError when the store is not the catalog's, ConfigError, InfrastructureError.
    """
    candidates = deployment.catalog.batches.unfinished_by_hand()
    if not candidates:
        return []
    deployment.require_match()
    return [batch_id for batch_id in candidates if _settle(deployment, batch_id)]


def user_name() -> str:
    """Who runs this process, as the host calls them."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def _begin(asked: Asked, batch_id: str, deployment: Deployment) -> BatchByHand:
    store = deployment.store

    @cache
    def book_of(digest: str) -> RecipeBook:
        return deployment.recipe_book(asked.profiles[digest])

    attempt = _last_attempt(store, batch_id) + 1
    plan = plan_batch(
        Batch(tuple(asked.clips), ()),
        name=asked.name,
        source=asked.source,
        store=store,
        book_of=book_of,
        options=asked.options,
        origin={"requested_by": user_name()},
        clips_per_shard=len(asked.clips),
        told=deployment.told,
    )
    plan = replace(plan, batch_id=batch_id, by_hand=ByHand(process=this_process(), attempt=attempt))
    remove_batch(store, batch_id)  # what earlier calls told of their stages is not what became of this one's
    save_plan(plan, store)
    recorder = CatalogRecorder.of(deployment)
    recorder.on_plan(plan)
    return BatchByHand(plan, attempt, deployment, recorder, datetime.now(UTC))


def _last_attempt(store: ArtifactStore, batch_id: str) -> int:
    """How often the batch was rendered; a document that cannot be read is about to be replaced."""
    try:
        document = find_document(store, batch_name(batch_id), BatchDocument)
    except (CorruptedArtifactError, InputError) as error:
        logger.warning("batch %s begins anew: %s", batch_id, error)
        return 0
    return document.by_hand.attempt if document and document.by_hand else 0


def _settle(deployment: Deployment, batch_id: str) -> bool:
    try:
        with work_lock(deployment.settings.store, _LOCK, batch_id, timeout_s=0):
            by_hand = load_batch(deployment.store, batch_id).by_hand
            if by_hand is None or not has_ended(by_hand.process):
                return False
            process = by_hand.process.split()
            lost = BatchCancelledError(f"process {process[-2]} on {process[0]} ended without a word")
            recorder = CatalogRecorder.of(deployment)
            recorder.on_lost(batch_id, lost)
            _write_failures(deployment.store, batch_id, lost)
            _report(deployment, recorder, batch_id)
            return True
    except (CorruptedArtifactError, InputError) as error:
        logger.error("batch %s is not settled: %s", batch_id, error)
    except InfrastructureError as error:
        logger.info("batch %s is not settled: %s", batch_id, error)  # somebody has just gone on with it
    return False


def _reason(error: BaseException) -> Magi2Error:
    """What people are told of an end that no stage foresaw."""
    if isinstance(error, Exception):
        return Magi2Error(f"unforeseen {type(error).__name__}: {error}")
    return BatchCancelledError("interrupted")


def _write_failures(store: ArtifactStore, batch_id: str, error: Magi2Error) -> None:
    """Give each shard's first stage without results this reason, unless it has one."""
    if not is_planned(store, batch_id):
        return
    document = load_batch(store, batch_id)
    for shard in range(document.shards):
        clips = load_shard_document(store, batch_id, shard)
        for stage in shard_stages(clips, document.settings(clips.profile_digest)):
            if not newest_attempts(store, [results_name(batch_id, shard, stage)]):
                attempt = document.by_hand.attempt if document.by_hand else 1
                save_failure(store, batch_id, shard, stage, error, attempt=attempt)
                break


def _report(
    deployment: Deployment, recorder: CatalogRecorder, batch_id: str, *, started_at: datetime | None = None
) -> None:
    cost, made = recorder.cost(batch_id, deployment.price), recorder.made(batch_id)
    report = build_report(
        deployment.store,
        batch_id,
        started_at=started_at,
        cost=cost,
        made=made,
        thresholds=deployment.thresholds,
        failure_limit=recorder.failure_limit(batch_id),
    )
    save_report(report, deployment.store)
    recorder.on_report(report)
