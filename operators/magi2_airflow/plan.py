"""The first task of a batch's run: from the batch file, or an earlier batch, to shards."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context

from magi2.batches.failure_limit import USUAL_STREAK
from magi2.errors import InputError
from magi2_airflow.base import Magi2Operator
from magi2_airflow.links import ClipsLink
from magi2_airflow.readiness import require_airflow, tell_of_catalog

if TYPE_CHECKING:
    from magi2.batches.plan import BatchPlan
    from magi2.deployment import Deployment

logger = logging.getLogger(__name__)

_MAX_NAME = 200


class PlanOperator(Magi2Operator):
    """Validate a batch file whole, find what is in the store already and pack the rest into shards.

    Returns the shards' numbers, to be mapped over; `batch_id` is an XCom of its own.

    :param batch: path, file:// or s3:// address of a .jsonl, .csv, .tsv, .json or .parquet file in MAGI2_INBOX or
        MAGI2_INPUT_ROOTS; or give `rows` or `rerun_of`.
    :param rows: rows in place of a file: CSV with a header, JSON a line, a JSON array, or a list of rows.
    :param name: what the batch is called, by default as its file.
    :param profile: name of the one for rows that name none.
    :param failure_limit: clips that may fail before the run does.
    :param on_limit: stop when more failed, or continue and fail at the end; by default a limit from 1 on stops.
    :param failure_streak: equal failures in a row that pause the batch; 0 never does.
    :param on_bad_rows: refuse the file, or skip its bad rows and count them as failed.
    :param matrix: make choices of the braces in prompts, `{dusk|dawn}`, of rows that do not say whether to.
    :param overrides: `dotted.key=value` strings that change every profile.
    :param force: stages to compute again and compare.
    :param priority: batches of higher priority start their waiting shards first.
    :param budget: what the batch may cost, in the deployment's currency; once it is spent no further shard starts.
    :param images: folder in the same places where relative paths of the file start, by default the file's own.
    :param delivery_target: configured target to which clips are brought whose rows name none.
    :param delivery_name: template of their names there, such as `{batch}/{name}_{seed}_{profile}.mp4`.
    :param rerun_of: id of an earlier batch to run again, instead of a file.
    :param only: ids of that batch's clips, or "failed"; by default all.
    """

    template_fields = (
        "batch",
        "rows",
        "name",
        "profile",
        "failure_limit",
        "on_limit",
        "failure_streak",
        "on_bad_rows",
        "matrix",
        "overrides",
        "force",
        "priority",
        "budget",
        "images",
        "delivery_target",
        "delivery_name",
        "rerun_of",
        "only",
    )
    operator_extra_links = (ClipsLink(),)
    time_limit = timedelta(hours=4)
    batch_id: str | None = None

    def __init__(
        self,
        *,
        batch: str | None = None,
        rows: str | Sequence[Mapping[str, Any]] | None = None,
        name: str | None = None,
        profile: str = "1080p",
        failure_limit: int = 0,
        on_limit: str | None = None,
        failure_streak: int = USUAL_STREAK,
        on_bad_rows: str = "refuse",
        matrix: bool = False,
        overrides: Sequence[str] | None = None,
        force: Sequence[str] | None = None,
        priority: int = 0,
        budget: float | None = None,
        images: str | None = None,
        delivery_target: str | None = None,
        delivery_name: str | None = None,
        rerun_of: str | None = None,
        only: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.batch = batch
        self.rows = rows
        self.name = name
        self.profile = profile
        self.failure_limit = failure_limit
        self.on_limit = on_limit
        self.failure_streak = failure_streak
        self.on_bad_rows = on_bad_rows
        self.matrix = matrix
        self.overrides = overrides
        self.force = force
        self.priority = priority
        self.budget = budget
        self.images = images
        self.delivery_target = delivery_target
        self.delivery_name = delivery_name
        self.rerun_of = rerun_of
        self.only = only

    def work(self, context: Context) -> list[int]:
        from magi2.batches.dry_run import dry_run
        from magi2.batches.plan import save_plan
        from magi2.batches.refused import RefusedBatch
        from magi2.deployment import Deployment
        from magi2.jobs.recorder import CatalogRecorder
        from magi2.media.fitness import fit_ffmpeg
        from magi2.recipes.marking import producer_line

        require_airflow()
        deployment = Deployment.from_environment()
        patience = self.store_wait(deployment)
        store = patience(deployment.store_to_render)
        tell_of_catalog(deployment)
        with TemporaryDirectory() as scratch:
            try:
                plan = patience(lambda: self._plan(deployment, context, Path(scratch)))
            except InputError as error:
                refused = RefusedBatch.of(error, name=self._name, source=self._source, origin=self._origin(context))
                CatalogRecorder.of(deployment).on_refused(refused)
                raise
            _require_targets(deployment, plan)
            told = patience(lambda: dry_run(plan, store, price=deployment.price))
            deliveries = {profile.delivery for profile in plan.profiles.values()}
            ffmpeg = fit_ffmpeg(deployment.settings.ffmpeg, *deliveries)
            patience(lambda: save_plan(plan, store))
        CatalogRecorder.of(deployment).on_plan(plan)
        self.batch_id = plan.batch_id
        context["ti"].xcom_push(key="batch_id", value=plan.batch_id)
        if ffmpeg.passed_over:
            logger.warning("%s is used, since %s", ffmpeg.path, ffmpeg.passed_over)
        for row in plan.refused:
            logger.error("refused %.250s", row)
        counts = (plan.batch_id, plan.clips, plan.repeats, len(plan.cached), len(plan.refused), len(plan.shards))
        counted = "batch %s: %d clips, %d rows repeat others, %d clips finished already, %d rows refused, %d shards"
        logger.info(counted, *counts)
        for line in told.work_lines():
            logger.info(line)
        logger.info(producer_line(deployment.settings.content_producer))
        return [shard.number for shard in plan.shards]

    def _plan(self, deployment: Deployment, context: Context, scratch: Path) -> BatchPlan:
        from magi2.batches.inline_rows import InlineRows
        from magi2.batches.input_roots import deployment_roots
        from magi2.batches.intake import plan_location, plan_rerun
        from magi2.batches.plan import BatchOptions
        from magi2.batches.spread import Spread
        from magi2_airflow.connections import target_secret

        if sum(map(bool, (self.batch, self.rows, self.rerun_of))) != 1:
            raise InputError("give either a batch file, or rows, or the id of a batch to run again")
        options = BatchOptions(
            int(self.failure_limit),
            self.on_bad_rows,  # type: ignore[arg-type]  # checked there
            tuple(self.force or ()),
            int(self.priority),
            None if self.budget is None else float(self.budget),
            self.delivery_target or None,
            self.delivery_name or None,
            self.on_limit or None,  # type: ignore[arg-type]  # checked there
            int(self.failure_streak),
        )
        shared: dict[str, Any] = {
            "settings": deployment.settings,
            "store": deployment.store,
            "overrides": tuple(self.overrides or ()),
            "options": options,
            "origin": self._origin(context),
            "told": deployment.told,
        }
        if self.rerun_of:
            return plan_rerun(str(self.rerun_of), only=tuple(self.only or ()), scratch=scratch, **shared)
        return plan_location(
            InlineRows.of(self.rows) if self.rows else str(self.batch),
            profile=str(self.profile),
            images=self.images or None,
            name=self.name or None,
            roots=deployment_roots(
                deployment.settings, connections=target_secret, kept=scratch, has_file=not self.rows
            ),
            spread=Spread(matrix=bool(self.matrix)),
            **shared,
        )

    @staticmethod
    def _origin(context: Context) -> dict[str, str | None]:
        run = context["dag_run"]
        return {"dag_id": run.dag_id, "run_id": run.run_id, "requested_by": run.triggering_user_name}

    @property
    def _source(self) -> str:
        from magi2.batches.inline_rows import INLINE_SOURCE

        return INLINE_SOURCE if self.rows else str(self.batch or f"batch {self.rerun_of}")

    @property
    def _name(self) -> str:
        """What the batch is called where it was refused before it had a name."""
        return (self.name or Path(self._source.rpartition("/")[2]).stem)[:_MAX_NAME] or "batch"


def _require_targets(deployment: Deployment, plan: BatchPlan) -> None:
    """Raises ConfigError when a target of the plan's clips cannot be opened, as for want of its connection."""
    from magi2.delivery.targets import Targets
    from magi2_airflow.connections import target_secret

    targets = Targets.of(deployment.settings, connections=target_secret)
    for name in sorted({each.target for shard in plan.shards for clip in shard.clips for each in clip.deliveries}):
        targets.open(name)
