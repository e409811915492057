"""The stage that brings clips to their targets: in the process that is asked, without weights or an accelerator."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from magi2.artifacts.store import Patience, at_once
from magi2.batches.leases import LeaseKeeper
from magi2.batches.results import write_results
from magi2.delivery.credentials import Signer
from magi2.delivery.deliver import ClipDelivery
from magi2.delivery.targets import Targets
from magi2.deployment import Deployment
from magi2.errors import CancelledError, InputError, Magi2Error, in_one_line
from magi2.files import machine_error
from magi2.jobs.run import OnEvent, StageWork
from magi2.recipes.book import RecipeBook
from magi2.recipes.lookup import StoredClip
from magi2.recipes.result import StageResult
from magi2.runtime.lock import work_lock
from magi2.runtime.progress import EventTeller
from magi2.types import Clip, StageName

logger = logging.getLogger(__name__)


def deliver_clips(
    work: StageWork,
    on_event: OnEvent,
    *,
    deployment: Deployment,
    targets: Targets,
    check: Callable[[], None],
    patience: Patience = at_once,
) -> Sequence[StageResult]:
    """One result per clip, told and written to the store; see `magi2.jobs.run.Compute`.

    A clip that cannot be delivered fails alone; results that will be tried again are not written. `check` is called
    before each clip, and what it raises ends the stage. Another attempt at the same work is waited for.
    """
    job, store = work.job, deployment.store
    teller = EventTeller(on_event)
    before_clip = LeaseKeeper(store, job.batch_id, job.shard, deployment.settings.lease_days).after(check)
    book = deployment.recipe_book(work.shard.profile)
    results = []
    place = job.store, job.stage.value, job.key

    def tell(holder: str) -> None:
        logger.info("%s: waits for the same work held by %s", job.title, holder)
        check()

    with TemporaryDirectory() as scratch, work_lock(*place, timeout_s=math.inf, on_wait=tell):
        signer = Signer.of(deployment.settings)
        delivery = ClipDelivery(
            store, job.batch_id, targets, Path(scratch), book=book, signer=signer, price=deployment.price
        )
        teller.stage_started(job.stage, len(work.clips))
        for clip in work.clips:
            before_clip()
            results.append(_result(clip, work, book, deployment, delivery, patience))
            teller.clip_finished(results[-1])
    settled = [each for each in results if each.error is None or not job.is_tried_again(each.error)]
    patience(lambda: write_results(store, job.batch_id, job.shard, job.stage, job.attempt, settled))
    return results


def _result(
    clip: Clip,
    work: StageWork,
    book: RecipeBook,
    deployment: Deployment,
    delivery: ClipDelivery,
    patience: Patience,
) -> StageResult:
    started = time.monotonic()
    stored = StoredClip(deployment.store, book, clip)

    def bring() -> tuple[str, bool]:
        key = work.shard.finished.get(clip.clip_id) or stored.keys.get(StageName.MUX)
        if key is None or deployment.store.find(StageName.MUX, key) is None:
            raise InputError(f"clip {clip.short_id}: no mux artifact in the store", hint="run the mux stage first")
        return key, delivery.deliver(clip, key, stored)

    try:
        key, is_new = patience(bring)
    except CancelledError:
        raise
    except Exception as error:
        failure = _error_of(error)
        logger.error("clip %s is not delivered: %s", clip.short_id, failure)
        return StageResult(work.job.stage, clip, "failed", time.monotonic() - started, error=failure)
    return StageResult(work.job.stage, clip, "made" if is_new else "reused", time.monotonic() - started, key)


def _error_of(error: Exception) -> Magi2Error:
    if fault := machine_error(error):
        return fault
    if isinstance(error, Magi2Error):
        return error
    logger.exception("unforeseen error, the other clips go on")
    return Magi2Error(f"unforeseen {type(error).__name__}: {in_one_line(error)}")
