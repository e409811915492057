"""What every operator shares: where it runs, what is tried again, and how one stage of one shard is run."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator, Context, ExceptionRetryPolicy, RetryAction, RetryRule
from airflow.sdk.exceptions import AirflowRescheduleException, AirflowSkipException

from magi2.errors import (
    BatchCancelledError,
    BudgetSpentError,
    CancelledError,
    CorruptedArtifactError,
    InfrastructureError,
    Magi2Error,
    PausedError,
    StoppedError,
)
from magi2.types import StageName
from magi2_airflow.links import ClipsLink, LogLink, ManifestLink
from magi2_airflow.notifiers import streak_notices, tell
from magi2_airflow.places import CPU, EVERYWHERE

if TYPE_CHECKING:
    from magi2.artifacts.store import ArtifactStore
    from magi2.deployment import Deployment
    from magi2.jobs.run import OnEvent, StageWork
    from magi2.recipes.result import StageResult
    from magi2.runtime.job import StageJob
    from magi2.runtime.store_wait import StoreWait

logger = logging.getLogger(__name__)

OWNER = "magi2"

RETRY_POLICY = ExceptionRetryPolicy(
    rules=[
        RetryRule(exception=InfrastructureError, action=RetryAction.RETRY, reason="may pass by itself"),
        RetryRule(exception=CorruptedArtifactError, action=RetryAction.RETRY, reason="the artifact is made anew"),
        # Somebody who cancels a run has ended the task already; otherwise its worker is going down.
        RetryRule(exception=CancelledError, action=RetryAction.RETRY, reason="stopped from outside"),
        RetryRule(exception=Magi2Error, action=RetryAction.FAIL, reason="would fail in the same way again"),
    ]
)

KILL_GRACE_S = 2.5
"""Airflow gives a task 5 s from the signal to its end; the group must be gone by then."""


class Magi2Operator(BaseOperator):
    """Base of all operators here. `place` is their queue; any argument of BaseOperator overrides a default."""

    place: ClassVar[str] = CPU
    time_limit: ClassVar[timedelta] = timedelta(hours=1)
    ui_color = "#e6f0ee"

    def __init__(self, **kwargs: Any) -> None:
        defaults = {
            "owner": OWNER,
            "pool": EVERYWHERE,
            "queue": self.place,
            "execution_timeout": self.time_limit,
            "retries": 3,
            "retry_delay": timedelta(seconds=30),
            "retry_exponential_backoff": 2,
            "max_retry_delay": timedelta(minutes=10),
            "retry_policy": RETRY_POLICY,
        }
        super().__init__(**{**defaults, **kwargs})

    _is_killed = False

    def execute(self, context: Context) -> Any:
        """Run in a process that ends with its supervisor; see `work`."""
        end_with_supervisor()
        return self.work(context)

    def work(self, context: Context) -> Any:
        """What the task does. What it returns goes to XCom: references and counts, never more than 2 KiB."""
        raise NotImplementedError

    def on_kill(self) -> None:
        """Make `execute` end what it started or waits for, and raise."""
        self._is_killed = True

    def store_wait(self, deployment: Deployment) -> StoreWait:
        """What waits for a store that is away, or yet to be mounted, until the task is killed."""
        from magi2.runtime.store_wait import StoreWait

        return StoreWait(deployment, check=self._check_killed, waits_for_mount=True)

    def _check_killed(self) -> None:
        if self._is_killed:
            raise CancelledError("stopped from outside")


class StageOperator(Magi2Operator):
    """Run one stage of a batch's shard in a process group of its own and wait for it; returns references and counts.

    A clip that fails is in the counts and in the stage's results, and does not fail the task. One that met a fault that
    may pass does, once the others are made, as long as the task has tries left: the next one makes the rest. While the
    batch is paused, or another goes first, the task waits without a slot of its pool; it is skipped when the batch is
    cancelled or stopped, or its budget is spent. `layout` spreads preview, refine and decode over ranks, as in
    sp8.cfg1.ep4; by default that of MAGI2_LAYOUT, else all accelerators of the host, and one for decode. A task that
    waits asks again after `wait`.
    """

    stage: ClassVar[StageName]
    worker_module: ClassVar[str] = "magi2.runtime.worker"
    template_fields = ("batch_id", "shard", "layout")
    operator_extra_links = (ClipsLink(), ManifestLink(), LogLink())
    label = ""
    has_target = False

    def __init__(
        self,
        *,
        batch_id: str,
        shard: int,
        layout: str | None = None,
        wait: timedelta = timedelta(seconds=30),
        **kwargs: Any,
    ) -> None:
        defaults = {
            "pool": self.place,
            "map_index_template": "shard {{ task.shard }}{{ task.label }}",
            "weight_rule": "upstream",  # a shard that has begun is finished first
        }
        super().__init__(**{**defaults, **kwargs})
        self.batch_id = batch_id
        self.shard = shard
        self.layout = layout
        self.wait = wait

    def work(self, context: Context) -> dict[str, Any]:
        from magi2.deployment import Deployment
        from magi2.jobs.recorder import CatalogRecorder
        from magi2.jobs.run import StageWork, run_stage_job

        deployment = Deployment.from_environment()
        patience = self.store_wait(deployment)
        store = patience.store_of(self.batch_id)
        job = patience(lambda: self._job(deployment, context, store))
        for link in self.operator_extra_links:  # now, so that they are there while the task runs or if it is killed
            context["ti"].xcom_push(key=link.xcom_key, value=link.get_link(self, ti_key=context["ti"]))
        work = patience(lambda: StageWork.planned(job, store))
        self.label = f", {work.shard.profile.title}, {len(work.clips)} clips"
        self.has_target = any(clip.deliveries for clip in work.shard.clips)
        try:
            recorder = CatalogRecorder.of(deployment)
            results = run_stage_job(work, deployment, self.compute, recorder=recorder, patience=patience)
        except PausedError as error:
            logger.info("%s waits: %s", job.title, error)
            _tell_of_streak(job.batch_id, deployment)
            raise AirflowRescheduleException(datetime.now(UTC) + self.wait) from error  # type: ignore[no-untyped-call]
        except (BatchCancelledError, BudgetSpentError, StoppedError) as error:
            raise AirflowSkipException(str(error)) from error
        states = Counter(result.state for result in results)
        counts = {state: states[state] for state in ("made", "reused", "failed")}
        logger.info("%s: %s", job.title, ", ".join(f"{count} {state}" for state, count in counts.items()))
        return {"batch_id": job.batch_id, "shard": job.shard, "stage": job.stage.value, **counts}

    def compute(self, work: StageWork, on_event: OnEvent) -> Sequence[StageResult]:
        """Make what is to be made in a process group; see `magi2.jobs.run.Compute`."""
        from magi2.config.settings import Settings
        from magi2.jobs.launch import launch
        from magi2.runtime.watch import Limits
        from magi2.stages.layouts import stage_layout

        return launch(
            work,
            on_event,
            layout=stage_layout(self.stage, self.layout, Settings.from_environment()),
            # Accelerators may be busy for as long as somebody else's stage takes: that is no reason to fail.
            limits=Limits(grace=KILL_GRACE_S, lock=self.time_limit.total_seconds()),
            should_stop=lambda: self._is_killed,
        )

    def _job(self, deployment: Deployment, context: Context, store: ArtifactStore) -> StageJob:
        from magi2.batches.documents import load_batch
        from magi2.runtime.job import StageJob

        batch = load_batch(store, self.batch_id)
        ti = context["ti"]
        return StageJob(
            self.batch_id,
            int(self.shard),
            self.stage,
            deployment.settings.store,
            store_identity=deployment.store_identity,
            attempt=ti.try_number,
            force=self.stage.value in batch.options.force,
            is_last_try=ti.try_number > ti.max_tries,
            worker_module=self.worker_module,
        )


def _tell_of_streak(batch_id: str, deployment: Deployment) -> None:
    """Tell people that the batch paused itself, if it did: no callback is made for a task that waits."""
    try:
        for notice in streak_notices(batch_id, deployment):
            tell(notice, deployment)
    except Magi2Error as error:
        logger.warning("cannot know why batch %s is paused: %s", batch_id, error)


def end_with_supervisor() -> None:
    """Let the kernel end this task when its supervisor dies: nobody would hear of it, and a retry will start.

    Does nothing in `dag.test`, where there is no supervisor.
    """
    from magi2.runtime.process import die_with_parent

    if has_supervisor():
        die_with_parent()


def has_supervisor() -> bool:
    """Whether Airflow runs this task, and not `dag.test`."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import CommsDecoder

    return isinstance(getattr(task_runner, "SUPERVISOR_COMMS", None), CommsDecoder)
