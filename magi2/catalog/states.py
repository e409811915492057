"""Which state may follow which."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from magi2.catalog.records import BatchState as B
from magi2.catalog.records import ClipState as C
from magi2.errors import Magi2Error

FINISHED_BATCH = frozenset({B.DONE, B.FAILED, B.CANCELLED})
UNFINISHED_BATCH = frozenset(B) - FINISHED_BATCH
UNFINISHED_CLIP = frozenset({C.WAITING, C.RUNNING})

# Work may always be taken up again: an Airflow user clears the tasks of a finished run.
BATCH_SOURCES: Mapping[B, frozenset[B]] = MappingProxyType(
    {
        B.WAITING: frozenset({B.WAITING}),
        B.RUNNING: frozenset(B),
        B.DONE: frozenset({B.WAITING, B.RUNNING, B.DONE}),
        B.FAILED: frozenset({B.WAITING, B.RUNNING, B.FAILED}),
        B.CANCELLED: frozenset({B.WAITING, B.RUNNING, B.CANCELLED}),
    }
)
"""The states of a batch from which the given one may be reached."""

CLIP_SOURCES: Mapping[C, frozenset[C]] = MappingProxyType(
    {
        C.WAITING: frozenset(C) - {C.DONE},
        C.RUNNING: frozenset(C),
        C.DONE: frozenset(C),  # only ever by an artifact that is in the index
        C.FAILED: frozenset({C.WAITING, C.RUNNING, C.FAILED}),
        C.SKIPPED: frozenset({C.WAITING, C.SKIPPED}),
        C.CANCELLED: frozenset({C.WAITING, C.RUNNING, C.CANCELLED}),
    }
)
"""The states of a clip from which the given one may be reached."""


class StateError(Magi2Error):
    """The catalog was told something that does not fit what it knows."""

    code = "catalog_state"
