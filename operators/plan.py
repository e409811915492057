"""The first task of a batch's run: from the batch file to shards."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta

from airflow.sdk import Context

from operators.base import Magi2Operator
from operators.links import ClipsLink

logger = logging.getLogger(__name__)


class PlanOperator(Magi2Operator):
    """Validate a batch file whole, find what is in the store already and pack the rest into shards.

    Returns the shards' numbers, to be mapped over; `batch_id` is an XCom of its own.

    :param batch: path or file:// address of a .jsonl, .csv or .json file.
    :param profile: for rows that name none.
    :param overrides: `dotted.key=value` strings that change every profile.
    :param images: folder where relative paths of the file start, by default its own.
    :param failure_limit: clips that may fail before the run does.
    :param on_bad_rows: refuse the file, or skip its bad rows and count them as failed.
    :param force: stages to compute again and compare.
    """

    template_fields = ("batch", "profile", "overrides", "images", "failure_limit", "on_bad_rows", "force")
    operator_extra_links = (ClipsLink(),)
    time_limit = timedelta(hours=4)
    batch_id: str | None = None

    def __init__(
        self,
        *,
        batch: str,
        profile: str,
        overrides: Sequence[str] | None = None,
        images: str | None = None,
        failure_limit: int = 0,
        on_bad_rows: str = "refuse",
        force: Sequence[str] | None = None,
        **kwargs: object,
    ) -> None:
        super().__init__(**kwargs)
        self.batch = batch
        self.profile = profile
        self.overrides = overrides
        self.images = images
        self.failure_limit = failure_limit
        self.on_bad_rows = on_bad_rows
        self.force = force

    def work(self, context: Context) -> list[int]:
        from magi2.artifacts.address import open_store
        from magi2.bookkeeping import Bookkeeper
        from magi2.config.settings import Settings
        from magi2.intake import plan_location
        from magi2.plan import BatchOptions, save_plan

        settings = Settings.from_environment()
        store = open_store(settings.store)
        run = context["dag_run"]
        plan = plan_location(
            str(self.batch),
            settings=settings,
            store=store,
            profile=str(self.profile),
            overrides=tuple(self.overrides or ()),
            images=self.images or None,
            options=BatchOptions(int(self.failure_limit), self.on_bad_rows, tuple(self.force or ())),  # type: ignore[arg-type]
            origin={"dag_id": run.dag_id, "run_id": run.run_id, "requested_by": run.triggering_user_name},
        )
        save_plan(plan, store)
        Bookkeeper.of(settings, store).planned(plan)
        self.batch_id = plan.batch_id
        context["ti"].xcom_push(key="batch_id", value=plan.batch_id)
        for row in plan.refused:
            logger.error("refused row %d: %.200s", row.number, row.reason)
        counts = (plan.batch_id, plan.clips, len(plan.cached), len(plan.refused), len(plan.shards))
        logger.info("batch %s: %d clips, %d finished already, %d rows refused, %d shards", *counts)
        return [shard.number for shard in plan.shards]
