"""Batches, clips, stage runs and the artifact index in a database. The store's manifests are the truth, not this."""

from magi2.catalog.clips import ClipQuery, ClipSort
from magi2.catalog.engine import catalog_url
from magi2.catalog.records import (
    Action,
    ActionRecord,
    Actor,
    ArtifactRecord,
    BatchRecord,
    BatchState,
    ClipRecord,
    ClipState,
    NewBatch,
    Page,
    PlannedClip,
    Request,
    Run,
    RunState,
)
from magi2.catalog.repository import Catalog, open_catalog
from magi2.catalog.states import StateError

__all__ = [
    "Action",
    "ActionRecord",
    "Actor",
    "ArtifactRecord",
    "BatchRecord",
    "BatchState",
    "Catalog",
    "ClipQuery",
    "ClipRecord",
    "ClipSort",
    "ClipState",
    "NewBatch",
    "Page",
    "PlannedClip",
    "Request",
    "Run",
    "RunState",
    "StateError",
    "catalog_url",
    "open_catalog",
]
