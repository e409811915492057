"""The catalog's tables. A change here needs a migration and a new `REVISION`; a test compares the two."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Text,
    TextClause,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

REVISION = "0008"
"""The migration that gives these tables."""

VERSION_TABLE = "magi2_catalog_version"
"""Where the revision stands; not Alembic's own name, which another program in the same database may use."""


_NUMBER = BigInteger().with_variant(Integer, "sqlite")  # which counts up by itself on both


def plain_text(value: str) -> str:
    """Text as the catalog stores it."""
    return value.replace("\0", "\ufffd").encode(errors="replace").decode()


class PlainText(TypeDecorator[str]):
    """Text that every database takes: PostgreSQL refuses NUL, and file names may hold what is not Unicode."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else plain_text(value)


class UtcTime(TypeDecorator[datetime]):
    """A moment in UTC, also on SQLite, which keeps no time zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
        }
    )
    type_annotation_map: ClassVar = {
        str: PlainText,
        datetime: UtcTime,
        float: Float(53),
        list[Any]: JSON,
        dict[str, Any]: JSON,
    }


def is_flagged(column: str) -> TextClause:
    """That a list of flags is not empty, as the indexes of the flagged have it: only the same text finds them."""
    return text(f"CAST({column} AS TEXT) <> '[]'")


def flagged(name: str, column: str, *columns: str) -> Index:
    """An index of the rows whose list of flags is not empty, which are few."""
    return Index(name, *columns, sqlite_where=is_flagged(column), postgresql_where=is_flagged(column))


class IdentityRow(Base):
    """One row: the identity that this catalog shares with its store, and why the store was last refused, if it was."""

    __tablename__ = "identity"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    identity: Mapped[str | None]
    fault: Mapped[str | None]


class ProfileRow(Base):
    """A resolved profile, as used by some batch."""

    __tablename__ = "profiles"

    digest: Mapped[str] = mapped_column(primary_key=True)
    content: Mapped[dict[str, Any]]


class BatchRow(Base):
    __tablename__ = "batches"

    batch_id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    source: Mapped[str]
    state: Mapped[str] = mapped_column(index=True)
    requested: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(index=True)
    finished_at: Mapped[datetime | None]
    clips_total: Mapped[int]
    failure_limit: Mapped[int]
    on_bad_rows: Mapped[str]
    dag_id: Mapped[str | None]
    run_id: Mapped[str | None]
    requested_by: Mapped[str | None]
    parent_batch_id: Mapped[str | None]
    priority: Mapped[int] = mapped_column(server_default="0")
    budget: Mapped[float | None]
    on_limit: Mapped[str | None]
    failure_streak: Mapped[int] = mapped_column(server_default="0")


class BatchActionRow(Base):
    """What somebody did to a batch, in the order in which it was done."""

    __tablename__ = "batch_actions"

    action_id: Mapped[int] = mapped_column(primary_key=True)
    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.batch_id", ondelete="CASCADE"), index=True)
    at: Mapped[datetime]
    user_id: Mapped[str]
    user_name: Mapped[str]
    action: Mapped[str]
    arguments: Mapped[dict[str, Any]]


class NoticeRow(Base):
    """What people were told of, so that they are told once: `kind` of a batch, or of anything else by its name."""

    __tablename__ = "notices"

    kind: Mapped[str] = mapped_column(primary_key=True)
    subject: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[datetime]


class RefusedRow(Base):
    """A row of a batch file that could not be rendered, and why."""

    __tablename__ = "batch_rows_refused"

    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.batch_id", ondelete="CASCADE"), primary_key=True)
    row_number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    reason: Mapped[str]


class ClipRow(Base):
    """What a clip is, whatever batches ask for it.

    `prompt_digest` is the prompt's SHA-256, by which clips of one prompt find each other.
    """

    __tablename__ = "clips"

    clip_id: Mapped[str] = mapped_column(primary_key=True)
    prompt: Mapped[str]
    seed: Mapped[int] = mapped_column(BigInteger)
    profile_name: Mapped[str] = mapped_column(index=True)
    profile_digest: Mapped[str] = mapped_column(ForeignKey("profiles.digest"))
    figures: Mapped[list[Any]]
    prompt_digest: Mapped[str | None] = mapped_column(index=True)


class ArtifactRow(Base):
    """A manifest in the store."""

    __tablename__ = "artifacts"
    __table_args__ = (
        Index(None, "stage", "key"),
        Index(None, "stage", "size_bytes"),
        flagged("ix_artifacts_flagged", "flags", "key"),
    )

    key: Mapped[str] = mapped_column(primary_key=True)
    stage: Mapped[str]
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]
    device: Mapped[str]
    host: Mapped[str]
    flags: Mapped[list[Any]]
    make_seconds: Mapped[float | None]
    code_version: Mapped[str]
    measures: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))


class BatchClipRow(Base):
    """A clip in a batch. It is done only by an artifact that is in the index.

    `deliveries` are the places to which it is brought, with target and name; then it is done when it is there. Rows
    from before there were any have none.
    `defects` are the flags that its measures gave under the thresholds of this name, see `magi2.catalog.quality`.
    `first_name` is the first of its names, empty without one. The seconds are those of all its attempts, and the
    database's own triggers keep them.
    """

    __tablename__ = "batch_clips"
    __table_args__ = (
        CheckConstraint("state <> 'done' OR artifact_key IS NOT NULL", name="done_by_artifact"),
        Index(None, "batch_id", "state", "updated_at"),
        Index(None, "batch_id", "shard"),
        Index(None, "batch_id", "updated_at"),
        Index(None, "batch_id", "first_name"),
        Index(None, "state", "updated_at"),
        Index(None, "state", "judged_by"),
        flagged("ix_batch_clips_flagged", "defects", "batch_id"),
    )

    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.batch_id", ondelete="CASCADE"), primary_key=True)
    clip_id: Mapped[str] = mapped_column(ForeignKey("clips.clip_id"), primary_key=True, index=True)
    names: Mapped[list[Any]]
    tags: Mapped[list[Any]]
    priority: Mapped[int] = mapped_column(BigInteger)
    deliveries: Mapped[list[Any] | None]
    shard: Mapped[int | None]
    state: Mapped[str]
    failed_stage: Mapped[str | None]
    reason: Mapped[str | None]
    artifact_key: Mapped[str | None] = mapped_column(ForeignKey("artifacts.key"), index=True)
    updated_at: Mapped[datetime]
    expect: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    defects: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True))
    judged_by: Mapped[str | None]
    first_name: Mapped[str | None]
    seconds: Mapped[float] = mapped_column(server_default="0")
    accelerator_seconds: Mapped[float] = mapped_column(server_default="0")


class StageRunRow(Base):
    """One attempt at one stage of a clip in a batch."""

    __tablename__ = "stage_runs"
    __table_args__ = (
        ForeignKeyConstraint(
            ["batch_id", "clip_id"], ["batch_clips.batch_id", "batch_clips.clip_id"], ondelete="CASCADE"
        ),
        # With all that the numbers of the last day are made of.
        Index(None, "finished_at", "stage", "state", "seconds"),
        flagged("ix_stage_runs_flagged", "flags", "batch_id"),
    )

    batch_id: Mapped[str] = mapped_column(primary_key=True)
    clip_id: Mapped[str] = mapped_column(primary_key=True)
    stage: Mapped[str] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    shard: Mapped[int | None]
    state: Mapped[str]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    seconds: Mapped[float | None]
    accelerator_seconds: Mapped[float | None]
    peak_memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    host: Mapped[str | None]
    error_code: Mapped[str | None]
    error: Mapped[str | None]
    flags: Mapped[list[Any]]
    artifact_key: Mapped[str | None]


class ShardPositionRow(Base):
    """What a shard works on: one row for each shard, whatever it did before."""

    __tablename__ = "shard_positions"

    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.batch_id", ondelete="CASCADE"), primary_key=True)
    shard: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    stage: Mapped[str]
    attempt: Mapped[int]
    clip_id: Mapped[str]
    step: Mapped[int]
    steps: Mapped[int]
    steps_per_second: Mapped[float | None]
    at: Mapped[datetime]


class WeightLoadRow(Base):
    """How long an attempt at a shard's stage took to load its weights."""

    __tablename__ = "weight_loads"

    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.batch_id", ondelete="CASCADE"), primary_key=True)
    shard: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    stage: Mapped[str] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    seconds: Mapped[float]
    at: Mapped[datetime] = mapped_column(index=True)


class ChangedCountRow(Base):
    """A shard, or one stage of it, that triggers found changed; gone again when the transaction has counted it.

    Clips of `shard` NULL were finished before; `stage` NULL is everything. See `magi2.catalog.kept`.
    """

    __tablename__ = "changed_counts"

    number: Mapped[int] = mapped_column(_NUMBER, primary_key=True)
    batch_id: Mapped[str]
    shard: Mapped[int | None]
    stage: Mapped[str | None]


class ShardClipsRow(Base):
    """How many clips of a shard are alike in all that is counted; `defects` as text, empty of the unmeasured."""

    __tablename__ = "shard_clips"
    __table_args__ = (Index(None, "batch_id", "shard"),)

    number: Mapped[int] = mapped_column(_NUMBER, primary_key=True)
    batch_id: Mapped[str]
    shard: Mapped[int | None]
    profile_digest: Mapped[str]
    profile_name: Mapped[str]
    state: Mapped[str]
    failed_stage: Mapped[str | None]
    has_target: Mapped[bool]
    is_reused: Mapped[bool]
    is_stored: Mapped[bool]
    defects: Mapped[str]
    clips: Mapped[int]


class ShardRunsRow(Base):
    """How many attempts at a stage of a shard's clips are alike in all that is counted, and what they took.

    Those of `state` "loaded" are loads of weights, which belong to no clip.
    """

    __tablename__ = "shard_runs"
    __table_args__ = (Index(None, "batch_id", "shard", "stage"),)

    number: Mapped[int] = mapped_column(_NUMBER, primary_key=True)
    batch_id: Mapped[str]
    shard: Mapped[int | None]
    stage: Mapped[str]
    state: Mapped[str]
    outcome: Mapped[str]
    clip_state: Mapped[str]
    is_last: Mapped[bool]
    error_code: Mapped[str]
    runs: Mapped[int]
    seconds: Mapped[float]
    accelerator_seconds: Mapped[float]
    peak_memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    began: Mapped[datetime | None]


class TotalClipsRow(Base):
    """The clips of all shards, in `lane`s so that shards that work at once rarely wait for each other's row."""

    __tablename__ = "total_clips"

    lane: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    state: Mapped[str] = mapped_column(primary_key=True)
    defects: Mapped[str] = mapped_column(primary_key=True)
    clips: Mapped[int]


class TotalRunsRow(Base):
    """The attempts of all shards, in lanes like their clips."""

    __tablename__ = "total_runs"

    lane: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    stage: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(primary_key=True)
    is_last: Mapped[bool] = mapped_column(primary_key=True)
    error_code: Mapped[str] = mapped_column(primary_key=True)
    runs: Mapped[int]
    seconds: Mapped[float]
    accelerator_seconds: Mapped[float]


def json_fragment(value: str) -> str:
    """`value` as it stands inside a stored JSON string, for searching in one."""
    return json.dumps(value)[1:-1]
