"""What the documents of a batch say: one model for each kind, and one version for all of them.

A document without a version is of version 1, as all were before they had one; `upgraded` says what changed since.
Those of version 3 and later are sealed, see `magi2.artifacts.seal`. Keys that a model does not have are ignored.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from magi2.batches.failure_groups import Failure, FailureGroup, group_failures
from magi2.batches.failure_limit import FailureCount, OnLimit
from magi2.config.profile import Profile, settings_digest
from magi2.config.strict import validate
from magi2.errors import ConfigError, CorruptedArtifactError
from magi2.types import Clip, Delivery, Expect, FigureImage, StageName

VERSION = 3
SEALED_SINCE = 3
"""The first version whose documents carry a digest of their own."""

PLAN_AGAIN = "clear the plan task of its run, or render its prompts again: that writes it anew"
"""What to do about a plan that was changed."""

Moment = Annotated[AwareDatetime, PlainSerializer(lambda moment: moment.isoformat(), when_used="json")]


class Content(BaseModel):
    """A part of a document."""

    model_config = ConfigDict(frozen=True)


class Document(Content):
    """A document of today's version."""

    version: int = VERSION

    @classmethod
    def upgraded(cls, content: Any) -> Any:
        """The JSON value of a document of an older version as today's version has it."""
        return content


class ClipDocument(Content):
    """A clip; its id is that of its content."""

    clip_id: str
    prompt: str
    seed: int
    profile_name: str
    profile_digest: str
    figures: tuple[FigureImage, ...]
    names: tuple[str, ...]
    tags: tuple[str, ...]
    priority: int
    caption: str | None = Field(None, exclude_if=lambda caption: caption is None)
    deliveries: tuple[Delivery, ...] = ()
    expect: Expect = Expect()

    @classmethod
    def of(cls, clip: Clip, **more: Any) -> Self:
        """The document of a clip; `more` is what a subclass adds."""
        return cls(clip_id=clip.clip_id, **_values(clip), **more)

    def to_clip(self) -> Clip:
        """The clip, with its images where they lay when it was planned."""
        return Clip(**_values(self))

    @model_validator(mode="after")
    def _check_id(self) -> Self:
        content = self.to_clip()
        if content.clip_id != self.clip_id:
            raise ValueError(f"clip {self.clip_id[:12]} has the content of {content.short_id}")
        return self


class FinishedClip(ClipDocument):
    """A clip found finished by the plan: `key` of its file, `flags` of its caption and embeddings."""

    key: str | None = None
    flags: tuple[str, ...] = ()


class FinishedDocument(Document):
    """The clips that were finished when the batch was planned."""

    finished: tuple[FinishedClip, ...]

    @classmethod
    def upgraded(cls, content: Any) -> Any:
        """Version 1 was the bare list."""
        return {"finished": content} if isinstance(content, list) else content


class FinishedFile(Content):
    """The file of a clip that was finished when its batch was planned: its key, and flags of caption and embeddings."""

    key: str
    flags: tuple[str, ...] = ()


class ShardDocument(Document):
    """The clips, all of one profile, that one task renders with one load of the weights.

    Those in `finished`, by id, are only to be delivered.
    """

    batch_id: str
    shard: int
    profile_digest: str
    clips: tuple[ClipDocument, ...]
    finished: dict[str, FinishedFile] = {}


class RefusedRow(Content):
    """A row of the batch file that cannot be rendered, and why."""

    row: int
    reason: str


class OptionsDocument(Content):
    """What a user decided about a batch, see `magi2.batches.plan.BatchOptions`.

    No limit of a batch from before there was a choice stops it, and no streak pauses it.
    """

    failure_limit: int
    on_bad_rows: str
    force: tuple[str, ...] = ()
    priority: int = 0
    budget: float | None = None
    delivery_target: str | None = None
    delivery_name: str | None = None
    on_limit: OnLimit = Field(OnLimit.CONTINUE, exclude_if=lambda value: value == OnLimit.CONTINUE)
    failure_streak: int = Field(0, exclude_if=lambda value: value == 0)


class ByHand(Content):
    """Who renders a batch of the command line: a process, and which call of its command that is, the first being 1."""

    process: str
    attempt: int


class BatchDocument(Document):
    """A batch as planned. `profiles` are resolved, by digest; `missing` counts the clips that lack a stage.

    `by_hand` says which process renders it; a batch without it is rendered by a run of Airflow. `marking` is what the
    recipes of its files say of their marks, by profile; older versions knew of none.
    """

    batch_id: str
    name: str
    source: str
    created_at: Moment
    options: OptionsDocument
    profiles: dict[str, dict[str, Any]]
    refused: tuple[RefusedRow, ...]
    shards: int
    clips: int
    missing: dict[str, int] = {}
    dag_id: str | None = None
    run_id: str | None = None
    requested_by: str | None = None
    parent_batch_id: str | None = None
    by_hand: ByHand | None = None
    marking: dict[str, dict[str, Any]] = {}

    def settings(self, digest: str) -> dict[str, Any]:
        """A profile as it was resolved. Raises CorruptedArtifactError for one that the batch does not have."""
        if digest not in self.profiles:
            raise CorruptedArtifactError(f"batch {self.batch_id}: its document lacks the profile {digest[:12]}")
        return self.profiles[digest]

    def profile(self, digest: str) -> Profile:
        """A profile by its digest.

        Raises: as `settings` and `check_profile` do; ConfigError for one that this version cannot render, or resolves
        otherwise than the one that planned the batch.
        """
        profile = validate(Profile, self.settings(digest), place=f"batch {self.batch_id}")
        self.check_profile(digest)
        if (found := profile.digest()) != digest:
            message = (
                f"batch {self.batch_id}: profile {digest[:12]}, as planned by another version, is {found[:12]} here"
            )
            raise ConfigError(message, hint="plan the batch again with this version")
        return profile

    def check_profile(self, digest: str) -> None:
        """Raises CorruptedArtifactError when the settings of a profile are not those that were planned."""
        found = settings_digest(self.settings(digest))
        if found != digest:
            message = f"batch {self.batch_id}: profile {digest[:12]} has the settings of {found[:12]}"
            raise CorruptedArtifactError(message, hint=PLAN_AGAIN)


class ClipResult(Content):
    """What became of a clip in a stage: `key` of its artifact, or the error that it failed with.

    `measures` are those of the delivered clip, see `magi2.quality`.
    """

    clip_id: str
    state: Literal["made", "reused", "failed", "cancelled"]
    key: str | None = None
    seconds: float | None = None
    flags: tuple[str, ...] = ()
    measures: dict[str, Any] | None = None
    error_code: str | None = None
    error: str | None = None

    @property
    def has_artifact(self) -> bool:
        """Whether the stage came to its end."""
        return self.state in ("made", "reused")


class ResultsDocument(Document):
    """What the last attempt at a stage made of a shard's clips; one that will be tried again is not among them."""

    batch_id: str
    shard: int
    stage: StageName
    attempt: int
    results: tuple[ClipResult, ...]


class WrittenResults(ResultsDocument):
    """The same as it is written: with the manifests, as text, of the artifacts that it names, by key.

    One document then says what many would have to be asked for. Older versions wrote none.
    """

    manifests: dict[str, str] = Field({}, exclude_if=lambda manifests: not manifests)


class Receipt(Content):
    """A clip at a target: the names and digests of the files there, and of the stored file that they were made from.

    `name` is that of the clip's own file, which has `sha256`; the stored one has `stored_sha256` and lies under `key`.
    `wanted` is the name that was planned. Before `delivered_at` is set the files are on their way. A file that is
    `signed` is another than the stored one; what is `marked` says once that it is made by AI.
    """

    target: str
    wanted: str
    name: str
    key: str
    files: dict[str, str]
    stored_sha256: str
    sha256: str
    size_bytes: int | None = None
    signed: bool = False
    marked: bool = False
    delivered_at: Moment | None = None


class DeliveryDocument(Document):
    """What is known of a clip's deliveries in a batch."""

    batch_id: str
    clip_id: str
    receipts: tuple[Receipt, ...]


class LeaseDocument(Document):
    """What the clips of a shard need, or those found finished where `shard` is None: keys by stage, by clip id.

    `at` is the last sign of life; one that has `ended` holds nothing and tells when the artifacts were last used.
    """

    batch_id: str
    shard: int | None
    at: Moment
    clips: dict[str, dict[StageName, str]]
    ended: bool = False


class FailureDocument(Document):
    """Why a stage of a shard as a whole ended without results."""

    error_code: str
    error: str


class StageOutcome(Content):
    """What a stage made of one clip (`made`, `reused` or `failed`), and in how many seconds."""

    state: str
    seconds: float


class ReportedClip(Content):
    """A clip, or a refused row, which has no clip id. `stage` is where it failed, `key` that of its delivered file.

    `reused`: it is finished, and its delivered file was not made by this batch. `stages` are those that this run has
    taken it through, in order. `tier` is that of its schedule and the share of the evaluations. `quality` is how it was
    judged when the report was made, None of a clip that is not finished, or was decoded by a version that did not
    measure. Accelerator-seconds and cost are of all attempts in this batch; the cost is None where no price is set.
    """

    clip_id: str | None = None
    row: int | None = None
    names: tuple[str, ...] = ()
    prompt: str = ""
    profile: str = ""
    tier: str | None = None
    seed: int | None = None
    stage: str | None = None
    error_code: str | None = None
    reason: str | None = None
    flags: tuple[str, ...] = ()
    key: str | None = None
    reused: bool = False
    quality: dict[str, Any] | None = None
    accelerator_seconds: float = 0.0
    cost: float | None = None
    stages: dict[str, StageOutcome] = {}
    deliveries: tuple[Receipt, ...] = ()


class StageCount(Content):
    """Clips of one stage, the seconds that they took together, and what all attempts at them cost."""

    computed: int = 0
    reused: int = 0
    failed: int = 0
    seconds: float = 0.0
    accelerator_seconds: float = 0.0
    cost: float | None = None


class ReportedClips(Document):
    """The lists of a report: every clip is in exactly one.

    `flagged` are finished, not good. `over_budget` and `cancelled` were not rendered because the budget was spent or
    somebody cancelled the batch, `stopped` because too many others had failed; they do not count as failed.
    """

    failed: tuple[ReportedClip, ...]
    flagged: tuple[ReportedClip, ...] = ()
    over_budget: tuple[ReportedClip, ...] = ()
    cancelled: tuple[ReportedClip, ...] = ()
    stopped: tuple[ReportedClip, ...] = ()
    done: tuple[ReportedClip, ...] = ()

    @classmethod
    def upgraded(cls, content: Any) -> Any:
        """Version 1 had the clips that were finished before, and not flagged, in a list `skipped`."""
        match content:
            case {"done": [*done], "skipped": [*skipped]} if all(isinstance(clip, dict) for clip in skipped):
                return {**content, "done": [*done, *({**clip, "reused": True} for clip in skipped)]}
        return content


class ReportDocument(ReportedClips):
    """What became of a batch.

    `seconds` are those from the start of its run to the report, made at `finished_at`. `stages_reused` counts the
    stages that clips found finished did not need to run, too; those that brought a clip somewhere count nowhere.
    Accelerator-seconds are of all attempts, None when the catalog did not say; costs and budget are in `currency`,
    which is None where no price is set.
    """

    batch_id: str
    name: str
    source: str
    run_id: str | None
    failure_limit: int
    seconds: float
    finished_at: Moment
    stages: dict[str, StageCount]
    stages_reused: int
    accelerator_seconds: float | None = None
    cost: float | None = None
    budget: float | None = None
    currency: str | None = None
    on_limit: OnLimit = OnLimit.CONTINUE

    @property
    def failure_count(self) -> FailureCount:
        """The failures beside their limit."""
        return FailureCount(len(self.failed), self.failure_limit, self.on_limit)

    @property
    def is_within_limit(self) -> bool:
        """Whether no more clips failed than the batch allows, and none was left out because they had."""
        return len(self.failed) <= self.failure_limit and not self.stopped

    @property
    def failure_groups(self) -> list[FailureGroup]:
        """The failures, refused rows among them, by stage and code."""
        return group_failures(
            Failure(clip.clip_id or ", ".join(clip.names), clip.stage, clip.error_code, clip.reason)
            for clip in self.failed
        )

    @property
    def counts(self) -> dict[str, int | float]:
        """The numbers that people and scripts ask for first.

        A clip that was brought to several places is marked, or signed, when all of those files are.
        """
        delivered = [clip.deliveries for clip in (*self.done, *self.flagged)]
        return {
            "clips_done": len(self.done),
            "clips_flagged": len(self.flagged),
            "clips_unmeasured": sum(clip.quality is None for clip in (*self.done, *self.flagged)),
            "clips_failed": len(self.failed),
            "clips_over_budget": len(self.over_budget),
            "clips_cancelled": len(self.cancelled),
            **({"clips_stopped": len(self.stopped)} if self.stopped else {}),
            "clips_delivered": sum(map(bool, delivered)),
            "clips_marked": sum(bool(receipts) and all(each.marked for each in receipts) for receipts in delivered),
            "clips_signed": sum(bool(receipts) and all(each.signed for each in receipts) for receipts in delivered),
            "clips_reused": sum(clip.reused for clip in (*self.done, *self.flagged)),
            "stages_computed": sum(each.computed for stage, each in self.stages.items() if stage != StageName.DELIVER),
            "stages_reused": self.stages_reused,
            "seconds": round(self.seconds, 1),
        }

    @model_serializer(mode="wrap")
    def _with_counts(self, content: SerializerFunctionWrapHandler) -> dict[str, Any]:
        failures = [group.to_json() for group in self.failure_groups]
        return {**content(self), "is_within_limit": self.is_within_limit, "failures": failures, **self.counts}


def _values(clip: Clip | ClipDocument) -> dict[str, Any]:
    """What a clip is made of, by the names that `Clip` has for it."""
    return {field.name: getattr(clip, field.name) for field in fields(Clip)}
