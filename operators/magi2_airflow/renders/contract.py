"""What the pages and the server say to each other: every route, and what is answered; `requests` has what is asked.

All routes lie under `/renders`. Links inside answers (`Media`, `image`, `manifest`) are absolute paths that can be used
as they are; `run_path`, `task_path` and `log_path` are paths of Airflow's own UI, relative to its base.

| method and path | answers | |
|---|---|---|
| GET /api/me | Viewer | who asks, and whether they may act |
| GET /api/store | StoreState | whether the store is the catalog's |
| GET /api/airflow | AirflowState | what Airflow lacks of what our DAGs need |
| GET /api/batches | BatchPage | query: state, text, offset, limit (at most 100); the newest first |
| GET /api/batches/{batch_id} | Batch | |
| GET /api/batches/{batch_id}/clips | ClipPage | query: ClipsWanted |
| GET /api/batches/{batch_id}/facets | Facets | what the filters can be set to, with counts |
| GET /api/batches/{batch_id}/failures | FailureGroups | failed clips by stage and error code, and refused rows |
| GET /api/batches/{batch_id}/actions | Actions | who did what to the batch, the newest first |
| GET /api/batches/{batch_id}/clips/{clip_id} | Clip | clip_id: all 64 characters |
| GET /api/batches/{batch_id}/clips/{clip_id}/others | ClipPage | same prompt and images, other profile or seed |
| GET /api/batches/{batch_id}/clips/{clip_id}/neighbours | Neighbours | query: ClipsWanted; offset, limit unused |
| GET /api/batches/{batch_id}/clips/{clip_id}/manifests/{stage} | a manifest | as the store has it |
| GET /api/lookup | Lookup | query: dag_id, run_id, task_id, map_index; `{MAP_INDEX}` as such means none |
| GET /api/start | StartForm | what a batch can be started with |
| POST /api/start/look | Looked | body: StartRequest; how the rows read, nothing is started |
| POST /api/start | Started | body: StartRequest; 400 for rows that cannot be read |
| POST /api/batches/{batch_id}/rerun | Acted | body: RerunRequest |
| POST /api/batches/{batch_id}/cancel | Acted | body: CancelRequest |
| POST /api/batches/{batch_id}/pause | Acted | body: PauseRequest |
| POST /api/batches/{batch_id}/resume | Acted | body: ResumeRequest |
| POST /api/batches/{batch_id}/priority | Acted | body: PriorityRequest |
| POST /api/batches/{batch_id}/budget | Acted | body: BudgetRequest; 409 when no price is set |
| POST /api/batches/{batch_id}/limit | Acted | body: LimitRequest |
| POST /api/batches/{batch_id}/delete | Deleted | body: DeleteRequest; 409 while the batch goes on |
| GET, HEAD /media/{key}/{name} | a file | names as in Media; a range, If-Range, If-None-Match; ?download=1 saves it |
| GET, HEAD /images/{batch_id}/{clip_id}/{number} | a picture | the reference image of a clip |
| GET, HEAD /pictures/{batch_id}/{clip_id} | a picture | of a clip at work; 204 when there is none |
| GET /ready | Ready | what Airflow lacks, for tasks: no login is asked for |
| GET, HEAD /static/{name} | a file | renders.js, renders.css and what lies beside them |

Errors are `{"detail": text}`: 400 what was asked for makes no sense, 401 nobody is logged in, 403 no right to it or a
cross-site request, 404 not there, 409 the batch is in no state for it or the store is not the catalog's, 422 a
malformed request (its `detail` is a list of `type`, `loc` and `msg`), 503 catalog or store do not answer, or too many
ask for media at once (with Retry-After). What Airflow
refuses keeps Airflow's status and `detail`. A POST needs `Content-Type: application/json`; its body may be `{}` where
all is optional.
Times are ISO 8601 in UTC, durations seconds, memory bytes, money an amount of `currency` (null: no price is set).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from magi2.catalog.counts import ClipCounts

StageText = Literal["enhance", "encode", "preview", "refine", "decode", "mux", "deliver"]


class Answer(BaseModel):
    """A body that the server sends."""

    model_config = ConfigDict(frozen=True)


class Viewer(Answer):
    """Who asks. `can_act` decides whether pages offer actions; the server checks each one again."""

    id: str
    name: str
    can_act: bool


class StoreState(Answer):
    """`problem` says why what is shown may be wrong and actions may be refused; null when nothing speaks against it."""

    problem: str | None


class AirflowState(Answer):
    """A sentence for each thing that Airflow lacks and for which runs would wait; empty when they can go on."""

    problems: list[str]


class Ready(Answer):
    """Pools of ours that Airflow does not have, and queues of ours that no worker serves."""

    missing_pools: list[str]
    queues_without_worker: list[str]


class StageBar(Answer):
    """A stage's part of a progress bar. `total` clips pass it; those finished before the batch count as reused.

    `done` is made and reused together; what `total` leaves over is waiting. Seconds are of all attempts together.
    """

    stage: StageText
    total: int
    done: int
    reused: int
    running: int
    failed: int
    seconds: float
    accelerator_seconds: float
    peak_memory_bytes: int | None


class Batch(Answer):
    """A batch as it stands. `state`: waiting, running, done, failed, cancelled; `is_live`: it may change by itself.

    `seconds_left` is an estimate from this batch's own clips, null until there is something to go by. `failures` are
    those of clips and rows beside their limit; once there are more, a batch that is to stop then `is_stopped`.
    `paused_because` says who paused it, or which equal failures did.
    """

    batch_id: str
    name: str
    source: str
    state: str
    is_live: bool
    is_paused: bool
    is_cancel_requested: bool
    priority: int
    clips: ClipCounts
    stages: list[StageBar]
    seconds_left: float | None
    accelerator_seconds: float
    cost: float | None
    budget: float | None
    currency: str | None
    started_by: str | None
    created_at: datetime
    finished_at: datetime | None
    failure_limit: int
    failures: str
    is_stopped: bool
    paused_because: str | None
    refused_rows: int
    dag_id: str | None
    run_id: str | None
    run_path: str | None
    parent_batch_id: str | None


class BatchPage(Answer):
    """Some of `total` batches."""

    batches: list[Batch]
    total: int
    offset: int


class Media(Answer):
    """Where a delivered clip's files are. `thumbnail` leads to the poster where a clip has none."""

    clip: str
    poster: str
    thumbnail: str
    contact_sheet: str
    download: str


class Work(Answer):
    """What is done to a running clip: its stage and, once it is that clip's turn, how many steps of it are done.

    `picture` shows it at the last snapshot, with another address at every step; it answers 204 where there is none.
    """

    stage: StageText
    step: int | None
    steps: int | None
    picture: str | None


class ClipCard(Answer):
    """A clip in a list. `prompt` is cut to 300 characters; `seconds`, `cost`: all its attempts in this batch.

    `shares_name`: another clip of the batch has the same first name, so that people need the id as well.
    """

    batch_id: str
    clip_id: str
    names: list[str]
    shares_name: bool
    prompt: str
    tags: list[str]
    profile: str
    seed: int
    shard: int | None
    priority: int
    state: str
    failed_stage: str | None
    reason: str | None
    flags: list[str]
    is_measured: bool
    seconds: float
    accelerator_seconds: float
    cost: float | None
    updated_at: datetime
    work: Work | None
    media: Media | None


class Neighbours(Answer):
    """Ids of the clips before and after one in a list of `total`, and its place there, counted from 1.

    All three are null for a clip that the list does not have, as when it has left the state that was asked for.
    """

    previous: str | None
    next: str | None
    place: int | None
    total: int


class ClipPage(Answer):
    """Some of `total` clips."""

    clips: list[ClipCard]
    total: int
    offset: int


class Facet(Answer):
    """A value that a filter can have, and how many of the batch's clips have it."""

    value: str
    count: int


class Facets(Answer):
    """Every value that occurs in the batch; of tags the 200 most frequent.

    Of flags also `any`, and `unmeasured`: finished, by a version that did not look for defects.
    """

    states: list[Facet]
    profiles: list[Facet]
    tags: list[Facet]
    flags: list[Facet]


class FailureGroup(Answer):
    """Clips that failed in the same stage with the same error; filter a list by `stage` and `error_code` to see them.

    `reason` is the message of the first, with `#` for every number; `examples` are the first.
    """

    stage: str | None
    error_code: str | None
    reason: str | None
    count: int
    examples: list[ClipCard]


class Refusal(Answer):
    """A row of the batch file that could not be rendered, and why; row 0 is the file as a whole."""

    row: int
    reason: str


class FailureGroups(Answer):
    """The 50 most frequent of `total` kinds, and the first 50 refused rows."""

    groups: list[FailureGroup]
    total: int
    refused: list[Refusal]


class Figure(Answer):
    """A reference image; `image` answers 404 when the store no longer has it."""

    number: int
    image: str


class Delivery(Answer):
    """Where a clip is brought: a configured target, and the path below it, that of the file once it is there."""

    target: str
    name: str


class StageStep(Answer):
    """One attempt at one stage; `attempt` is 0 where there was none in this batch.

    `state`: waiting, running, made, reused, failed, skipped, cancelled. Without an attempt it is waiting, or reused for
    a clip that was finished before the batch. `is_last`: no later attempt at this stage.
    """

    stage: StageText
    state: str
    attempt: int
    is_last: bool
    started_at: datetime | None = None
    finished_at: datetime | None = None
    seconds: float | None = None
    accelerator_seconds: float | None = None
    cost: float | None = None
    peak_memory_bytes: int | None = None
    host: str | None = None
    error_code: str | None = None
    error: str | None = None
    flags: list[str] = []
    manifest: str | None = None
    task_path: str | None = None
    log_path: str | None = None


class Defect(Answer):
    """A kind of defect, and from when to when it is, in seconds of the clip."""

    kind: str
    spans: list[tuple[float, float]]


class Quality(Answer):
    """How a finished clip is judged today. Still and silent: its longest stretch, and the share of the clip."""

    defects: list[Defect]
    seconds: float
    still_s: float
    still_share: float
    silent_s: float
    silent_share: float


class Clip(ClipCard):
    """All about one clip; `prompt` is whole here. `caption` is the prompt as enhanced.

    `settings` is the resolved profile, which may be experimental, `tier` that of its schedule and its share
    of the evaluations, `recipe` what determines the delivered file. `store_problem` says why caption, images or recipe
    are missing when the store did not give them. `quality` is null where nothing was measured.
    """

    error_code: str | None
    caption: str | None
    figures: list[Figure]
    deliveries: list[Delivery]
    profile_digest: str
    tier: str | None
    is_experimental: bool
    settings: dict[str, Any]
    recipe: dict[str, Any] | None
    timeline: list[StageStep]
    quality: Quality | None
    manifest: str | None
    run_path: str | None
    task_path: str | None
    log_path: str | None
    store_problem: str | None


class Deleted(Answer):
    """What went of a batch, or would go (`dry_run`): artifacts by stage, their bytes, and the batch's documents.

    `kept` of its artifacts stay, since they are captions, or another batch has to do with them. What was brought to
    targets stays there.
    """

    batch_id: str
    dry_run: bool
    artifacts: dict[str, int]
    freed_bytes: int
    kept: int
    documents: int


class Lookup(Answer):
    """What a run or task of Airflow is about; `shard` and `stage` only for a task that renders one."""

    batch_id: str
    name: str
    shard: int | None
    stage: StageText | None


class ActionRecord(Answer):
    """Something that somebody did to the batch."""

    at: datetime
    user_id: str
    user_name: str
    action: str
    arguments: dict[str, Any]


class Actions(Answer):
    """The newest 100."""

    actions: list[ActionRecord]


class Acted(Answer):
    """An action was carried out and written down. `run_path`: the run that a rerun started."""

    batch: Batch
    run_id: str | None = None
    run_path: str | None = None


class StartForm(Answer):
    """What a batch can be started with: profiles by name, and the one that the weights are made for."""

    profiles: list[str]
    profile: str


class FirstRow(Answer):
    """One of the first rows that can be read: its prompt, or the file of that."""

    text: str


class Planned(Answer):
    """What a run would do: different clips, those of them that are finished, rows that are equal to others.

    `accelerator_seconds` and cost leave out stages that were never measured here; the cost is null without a price.
    """

    clips: int
    finished: int
    equal: list[str]
    accelerator_seconds: float
    unmeasured_stages: list[str]
    cost: float | None
    currency: str | None


class Looked(Answer):
    """How rows read: how many there are, the first good ones, and the first of `bad_rows` with their reasons.

    `plan` is null where the server has no weights to plan with.
    """

    rows: int
    first: list[FirstRow]
    bad: list[Refusal]
    bad_rows: int
    plan: Planned | None


class Started(Answer):
    """The run that renders the batch."""

    run_id: str
    run_path: str
