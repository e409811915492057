"""The numbers of batches, counted once for all who look: twenty people watching a batch ask the same question."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from magi2.catalog import BatchRecord
from magi2.catalog.counts import BatchCounts
from magi2.catalog.overview import Overview
from magi2.catalog.states import FINISHED_BATCH

LIVE_S, FINISHED_S = 2.0, 60.0
"""How old numbers may get, of a batch that goes on and of a finished one, which only retention changes."""
KEPT = 500


class CountsCache:
    """The counts of batches, counted anew when they are too old or the batch itself has changed."""

    def __init__(self, overview: Overview, clock: Callable[[], float] = time.monotonic) -> None:
        self._overview = overview
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[BatchRecord, tuple[float, BatchCounts]] = {}

    def of(self, batches: Sequence[BatchRecord]) -> dict[str, BatchCounts]:
        """The numbers of each batch, by id. Raises InfrastructureError when the catalog does not answer."""
        with self._lock:  # whoever comes while somebody counts finds what they counted
            fresh = {batch: self._kept[batch] for batch in batches if self._is_fresh(batch)}
            old = [batch for batch in batches if batch not in fresh]
            if old:
                counted = self._overview.counts([batch.batch_id for batch in old])
                self._kept = {batch: kept for batch, kept in self._kept.items() if self._is_fresh(batch)}
                if len(self._kept) > KEPT:
                    self._kept.clear()
                fresh |= {batch: (self._clock(), counted[batch.batch_id]) for batch in old}
                self._kept |= fresh
            return {batch.batch_id: fresh[batch][1] for batch in batches}

    def forget(self) -> None:
        """Count everything anew, because somebody has just changed something."""
        with self._lock:
            self._kept.clear()

    def _is_fresh(self, batch: BatchRecord) -> bool:
        counted_at, _ = self._kept.get(batch, (float("-inf"), None))
        return self._clock() - counted_at < (FINISHED_S if batch.state in FINISHED_BATCH else LIVE_S)
