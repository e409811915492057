"""A store that does not take one clip's artifact for a while: its neighbour is made, and it at the next try."""

from __future__ import annotations

from pathlib import Path

import pytest

from magi2.catalog import ClipState
from magi2.catalog.clips import ClipQuery
from magi2.types import StageName
from tests.airflow.airflow_site import wait_until
from tests.airflow.fault_site import LATE, START_TIMEOUT_S, Calm, Site, Task, check_as_if_nothing_happened


@pytest.mark.faults
@pytest.mark.parametrize("stage", [StageName.ENHANCE, StageName.ENCODE, *LATE])
def test_batch_survives_a_store_that_does_not_take_a_clip(
    kill_site: Site, small: Task, calm: Calm, stage: StageName
) -> None:
    store = Path(kill_site.settings.store)
    calm.copy_until(stage, store)
    key = next(name for name in calm.digests if name.startswith(f"{stage.value}/")).partition("/")[2]
    obstacle = store / "artifacts" / stage.value / key[:2]
    obstacle.parent.mkdir(parents=True, exist_ok=True)
    obstacle.write_text("a file where a folder belongs")
    run_id = kill_site.start(small)
    wait_until(lambda: kill_site.attempts(run_id, stage) > 1, START_TIMEOUT_S)
    finished = set(kill_site.store.keys(stage))
    clips = kill_site.catalog.clips.search(ClipQuery(batch_id=kill_site.batch_id(run_id))).rows
    assert len(clips) == 2 and all(clip.state is not ClipState.FAILED for clip in clips)
    obstacle.unlink()
    assert kill_site.wait(run_id) == "success"
    assert len(finished) == 1
    check_as_if_nothing_happened(kill_site, run_id, calm, finished)
