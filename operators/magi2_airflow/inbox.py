"""The inbox's task: each new batch file starts one run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow.sdk import Context

from magi2_airflow.base import Magi2Operator

logger = logging.getLogger(__name__)


class InboxOperator(Magi2Operator):
    """Claim the new files of MAGI2_INBOX and start a run of `trigger_dag_id` for each; returns how many.

    A claim fixes its run's id, so asking twice for a run, as after a crash, makes one.

    :param settle_s: a file that changed less than this many seconds ago may still be growing.
    """

    template_fields = ("trigger_dag_id",)

    def __init__(self, *, trigger_dag_id: str, settle_s: float = 10.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.trigger_dag_id = trigger_dag_id
        self.settle_s = settle_s

    def work(self, context: Context) -> dict[str, int]:
        from magi2.batches.inbox import Claim, Inbox
        from magi2.batches.input_roots import deployment_roots
        from magi2.batches.refused import RefusedBatch
        from magi2.deployment import Deployment
        from magi2.errors import InputError
        from magi2.jobs.recorder import CatalogRecorder

        deployment = Deployment.from_environment()
        folder = deployment.settings.inbox
        if folder is None:
            logger.info("there is no inbox: MAGI2_INBOX is not set")
            return {"started": 0}
        self.store_wait(deployment)(deployment.store_to_render)  # no file is taken for a run that would be refused
        recorder, started = CatalogRecorder.of(deployment), 0

        def on_reject(claim: Claim, reason: str) -> None:
            origin = {"run_id": claim.run_id}  # which no run has
            refused = RefusedBatch.of(InputError(reason), name=claim.run_id, source=str(claim.path), origin=origin)
            recorder.on_refused(refused)

        roots = deployment_roots(deployment.settings)
        inbox = Inbox(folder, roots=roots, settle_s=self.settle_s, on_reject=on_reject)
        inbox.claim()
        for claim in inbox.pending():
            conf = {"batch": str(claim.path), "images": str(folder), **claim.options}
            is_new = start_run(self.trigger_dag_id, claim.run_id, conf)
            inbox.started(claim)
            logger.info("run %s %s", claim.run_id, "is started" if is_new else "was started before")
            started += is_new
        return {"started": started}


def start_run(dag_id: str, run_id: str, conf: Mapping[str, Any]) -> bool:
    """Ask for a run by the way that TriggerDagRunOperator goes; whether it is new."""
    from airflow.sdk.exceptions import ErrorType
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun

    request = TriggerDagRun(dag_id=dag_id, run_id=run_id, conf=dict(conf))
    answer = task_runner.SUPERVISOR_COMMS.send(request)
    return not (isinstance(answer, ErrorResponse) and answer.error is ErrorType.DAGRUN_ALREADY_EXISTS)
