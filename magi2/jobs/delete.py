"""Deleting a batch, from the store and from the catalog."""

from __future__ import annotations

from magi2.batches.deletion import Deletion, delete_batch
from magi2.batches.documents import is_planned
from magi2.catalog.batches import require_ended
from magi2.deployment import Deployment
from magi2.errors import InputError


def delete(deployment: Deployment, batch_id: str, *, dry_run: bool = True) -> Deletion:
    """Remove a batch that has ended with what no other needs, or say what would go, see `delete_batch`.

    Raises: StateError for a batch that goes on, InputError for one that neither catalog nor store has, IdentityError
    when the store is not the catalog's, InfrastructureError.
    """
    deployment.require_match(dry_run=dry_run)
    store, catalog = deployment.store, deployment.catalog
    batch = catalog.batches.get(batch_id)
    if batch is not None:
        require_ended(batch)
    elif not is_planned(store, batch_id):
        raise InputError(f"there is no batch {batch_id!r}", hint="magi2 status lists them")
    spared = catalog.artifacts.of_others(batch_id)
    lease_days = deployment.settings.lease_days
    deletion = delete_batch(store, batch_id, spared=spared, lease_days=lease_days, dry_run=dry_run)
    if not dry_run:
        catalog.batches.delete(batch_id)
        catalog.artifacts.forget(key for _, key in deletion.removed)
    return deletion
