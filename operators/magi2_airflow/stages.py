"""One operator per stage; they differ in where they run and how long they may take."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.exceptions import DownstreamTasksSkipped

from magi2.types import StageName
from magi2_airflow.base import StageOperator
from magi2_airflow.places import ALL_GPUS, CPU, ONE_GPU

if TYPE_CHECKING:
    from magi2.jobs.run import OnEvent, StageWork
    from magi2.recipes.result import StageResult


class EnhanceOperator(StageOperator):
    """Turn each prompt into the caption that the model was trained on, by a language model or as configured."""

    stage = StageName.ENHANCE
    place = CPU
    time_limit = timedelta(hours=6)


class EncodeOperator(StageOperator):
    """Embed captions and reference images."""

    stage = StageName.ENCODE
    place = ONE_GPU
    time_limit = timedelta(hours=2)


class PreviewOperator(StageOperator):
    """Denoise picture and sound at preview size on all accelerators of a node."""

    stage = StageName.PREVIEW
    place = ALL_GPUS
    time_limit = timedelta(hours=24)


class RefineOperator(StageOperator):
    """Denoise again at delivery size; returns at once for profiles without refiner."""

    stage = StageName.REFINE
    place = ALL_GPUS
    time_limit = timedelta(hours=24)


class DecodeOperator(StageOperator):
    """Decode latents to a lossless picture and sound."""

    stage = StageName.DECODE
    place = ONE_GPU
    time_limit = timedelta(hours=12)


class MuxOperator(StageOperator):
    """Encode the clip's file, its poster and contact sheet.

    The task of deliver is skipped for a shard whose clips have no target: it would start for nothing.
    """

    stage = StageName.MUX
    place = CPU
    time_limit = timedelta(hours=12)

    def work(self, context: Context) -> dict[str, Any]:
        result, ti = super().work(context), context["ti"]
        followers = self.downstream_list if self.downstream_task_ids and not self.has_target else []
        skipped = [(task.task_id, ti.map_index) for task in followers if isinstance(task, DeliverOperator)]
        if skipped:
            ti.xcom_push(key=BaseXCom.XCOM_RETURN_KEY, value=result)
            raise DownstreamTasksSkipped(tasks=skipped)  # type: ignore[no-untyped-call]
        return result


class DeliverOperator(StageOperator):
    """Bring clips to their targets; returns at once for clips without one.

    It works in the task's own process. Credentials of a target that is an Airflow connection are asked for here and
    stay here.
    """

    stage = StageName.DELIVER
    place = CPU
    time_limit = timedelta(hours=12)

    def compute(self, work: StageWork, on_event: OnEvent) -> Sequence[StageResult]:
        from magi2.catalog.gate import CancelCheck
        from magi2.delivery.targets import Targets
        from magi2.deployment import Deployment
        from magi2.jobs.deliver import deliver_clips
        from magi2.runtime.worker import demand_retry
        from magi2_airflow.connections import target_secret

        deployment = Deployment.from_environment()
        asked = CancelCheck(deployment.settings, work.job.batch_id)

        def check() -> None:
            self._check_killed()
            asked.check()

        results = deliver_clips(
            work,
            on_event,
            deployment=deployment,
            targets=Targets.of(deployment.settings, connections=target_secret),
            check=check,
            patience=self.store_wait(deployment),
        )
        demand_retry(work.job, results)
        return results
