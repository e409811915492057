"""Computing a stage in a process group of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from magi2.jobs.run import OnEvent, StageWork, stage_result
from magi2.parallel.layout import ParallelLayout
from magi2.recipes.result import StageResult
from magi2.runtime.launcher import Launcher
from magi2.runtime.watch import Limits


def launch(
    work: StageWork,
    on_event: OnEvent,
    *,
    layout: ParallelLayout,
    limits: Limits | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> list[StageResult]:
    """The results of the group's ranks, which write them to the store themselves. Raises: what `Launcher.run` does."""
    job = replace(work.job, layout=layout)
    done = Launcher(limits=limits).run(job, on_event=on_event, should_stop=should_stop)
    clips = {clip.clip_id: clip for clip in work.clips}
    return [stage_result(job.stage, clips[event.clip_id], event) for event in done.clips]
