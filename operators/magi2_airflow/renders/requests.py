"""What the pages ask: which clips, and the bodies that come with actions; `contract` has the routes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from magi2.batches.row_clips import MAX_PRIORITY
from magi2.inputs.limits import MAX_INLINE_BYTES, MAX_NAME_CHARS
from magi2.inputs.text import NAME_PATTERN
from magi2_airflow.renders.contract import StageText

ClipIdText = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Sort(StrEnum):
    """What a list of clips can be ordered by."""

    NAME = "name"
    STATE = "state"
    SECONDS = "seconds"
    COST = "cost"
    UPDATED = "updated"


class ActionRequest(BaseModel):
    """A body that a page sends with an action."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RerunRequest(ActionRequest):
    """Start the batch again as a new run. `only`: all clips, those that failed, or those with these ids.

    Without `from_stage` what is missing is made. With it every stage from there on is made again and compared with what
    is stored; but with `overrides` (`refiner.steps=8`) it only says which stage the first change may reach.
    Failure limit and budget are the batch's own unless `failure_limit` is given.
    """

    from_stage: StageText | None = None
    only: Literal["all", "failed"] | Annotated[list[ClipIdText], Field(min_length=1, max_length=1000)] = "all"
    overrides: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=50)] = []
    failure_limit: Annotated[int | None, Field(ge=0, le=1_000_000)] = None


class StartRequest(ActionRequest):
    """Rows as text (CSV with a header, JSON a line, a JSON array), the profile of those that name none, and a name.

    With `matrix` the braces in prompts are choices, of rows that do not say whether they are.
    """

    rows: Annotated[str, Field(min_length=1, max_length=MAX_INLINE_BYTES)]
    profile: Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]
    name: Annotated[str, Field(max_length=MAX_NAME_CHARS)] = ""
    matrix: bool = False


class CancelRequest(ActionRequest):
    """End the batch for good: its run in Airflow and every clip that is not finished."""


class PauseRequest(ActionRequest):
    """Begin no further clip until somebody resumes."""


class ResumeRequest(ActionRequest):
    """Go on after a pause, or with what an ended batch left out when it stopped or its budget was spent."""


class PriorityRequest(ActionRequest):
    """Let the batch's shards start before those of batches with a lower number."""

    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]


class LimitRequest(ActionRequest):
    """How many clips may fail before the batch stops, or counts as failed."""

    failure_limit: Annotated[int, Field(ge=0, le=1_000_000)]


class DeleteRequest(ActionRequest):
    """Remove a batch that has ended, with what no other needs; a dry run unless `confirm` is true."""

    confirm: bool = False


class BudgetRequest(ActionRequest):
    """Let no shard of the batch begin once it has cost so much, in the deployment's currency; null is no limit."""

    budget: Annotated[float | None, Field(gt=0, allow_inf_nan=False)]


class ClipFilter(BaseModel):
    """Which clips; all that are given must hold. `text` is looked for in prompt, names and clip id.

    `stage`, `reason` and `error_code` are those of a failure; `flag` is a flag, `any`, or `unmeasured`.
    """

    model_config = ConfigDict(frozen=True)

    state: Literal["waiting", "running", "done", "failed", "skipped", "cancelled"] | None = None
    profile: Annotated[str | None, Field(max_length=200)] = None
    tag: Annotated[str | None, Field(max_length=1000)] = None
    text: Annotated[str | None, Field(max_length=1000)] = None
    shard: Annotated[int | None, Field(ge=0, le=1_000_000)] = None
    stage: StageText | None = None
    reason: Annotated[str | None, Field(max_length=10_000)] = None
    error_code: Annotated[str | None, Field(max_length=100)] = None
    flag: Annotated[str | None, Field(max_length=200)] = None


class ClipsWanted(ClipFilter):
    """Which clips in which order, and which page of them."""

    sort: Sort = Sort.UPDATED
    descending: bool = True
    offset: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    limit: Annotated[int, Field(ge=1, le=200)] = 60
