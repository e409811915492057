"""Housekeeping of the store and the catalog: functions for thin tasks, with all imports inside."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)

_DIFFERS = "they differ"  # a step of the comparison that found anything, perhaps in a try that was killed
LOG_HOURS = 14 * 24.0
"""A group's log is kept at least so long, for whoever asks why it failed."""


def expire_artifacts(decode_days: float, *, dry_run: bool) -> dict[str, Any]:
    """Remove lossless intermediates delivered more than `decode_days` ago; see `magi2.batches.retention`.

    What has been in quarantine for MAGI2_QUARANTINE_DAYS goes too.
    """
    from magi2.batches.retention import RetentionPolicy, collect_garbage
    from magi2.deployment import Deployment
    from magi2.types import StageName

    deployment = Deployment.from_environment()
    deployment.require_match(dry_run=dry_run)
    policy = RetentionPolicy({StageName.DECODE: decode_days}, lease_days=deployment.settings.lease_days)
    report = collect_garbage(deployment.store, policy=policy, dry_run=dry_run)
    for stage, key in report.removed:
        logger.info("%s %s/%s", "would remove" if dry_run else "removed", stage.value, key)
    quarantine_days = deployment.settings.quarantine_days
    expired = deployment.store.expire_condemned(older_than_days=quarantine_days, dry_run=dry_run)
    for place in expired:
        logger.info("%s %s", "would delete" if dry_run else "deleted", place)
    counts = {"removed": len(report.removed), "freed_bytes": report.freed_bytes, "needed": report.kept_needed}
    return {**counts, "expired": len(expired), "unreadable": sorted(report.unreadable)}


def sweep_store(older_than_hours: float, *, dry_run: bool) -> dict[str, Any]:
    """Delete what dead attempts left in the store, snapshots that nobody needs, and this host's old logs of groups."""
    from magi2.batches.documents import KnownManifests
    from magi2.batches.retention import sweep_snapshots
    from magi2.deployment import Deployment
    from magi2.runtime.log_file import sweep_logs

    deployment = Deployment.from_environment()
    names: list[str] = []
    try:
        deployment.require_match(dry_run=dry_run)
        known = KnownManifests(deployment.store)
        names += deployment.store.sweep(older_than_hours=older_than_hours, dry_run=dry_run, known=known)
        names += sweep_snapshots(deployment.store, dry_run=dry_run, lease_days=deployment.settings.lease_days)
    finally:  # the logs do not wait for a store that is away
        logs = sweep_logs(older_than_hours=max(older_than_hours, LOG_HOURS), dry_run=dry_run)
    for name in [*names, *logs]:
        logger.info("%s %s", "would delete" if dry_run else "deleted", name)
    return {"swept": len(names)}


def reconcile_catalog(*, dry_run: bool) -> dict[str, Any]:
    """Compare catalog and store, and make the catalog anew from the store if they differ.

    A try that was killed or ran out of time is gone on with by the next one within a day; the log says how far it is.
    Raises: IdentityError, and changes nothing, when the store is not the catalog's or misses too many clips.
    """
    from magi2.catalog.identity import require_complete
    from magi2.catalog.rebuild import rebuild
    from magi2.catalog.steps import Steps
    from magi2.catalog.verify import verify
    from magi2.deployment import Deployment

    deployment = Deployment.from_environment()
    store, catalog = deployment.store, deployment.catalog
    if not dry_run:
        require_complete(store, catalog)
    steps = Steps(None if dry_run else catalog, "verify")
    problems = 0
    for problem in verify(store, catalog, digests=False, steps=steps):
        logger.warning("%s %s: %s", problem.kind.value, problem.place, problem.message)
        problems += 1
        if not steps.is_done(_DIFFERS):
            steps.add(_DIFFERS)
    differs = steps.is_done(_DIFFERS)
    if differs and not dry_run:
        report = rebuild(store, catalog, goes_on=True)
        logger.info("rebuilt: %d artifacts, %d batches, %d clips", report.artifacts, report.batches, report.clips)
    steps.clear()
    return {"problems": problems, "rebuilt": differs and not dry_run}
