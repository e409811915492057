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
    MetaData,
    Text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

REVISION = "0006"
"""The migration that gives these tables."""

VERSION_TABLE = "magi2_catalog_version"
"""Where the revision stands; not Alembic's own name, which another program in the same database may use."""


class PlainText(TypeDecorator[str]):
    """Text that every database takes: PostgreSQL refuses NUL, and file names may hold what is not Unicode."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else value.replace("\0", "\ufffd").encode(errors="replace").decode()


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
    state: Mapped[str]
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
    """What a clip is, whatever batches ask for it."""

    __tablename__ = "clips"

    clip_id: Mapped[str] = mapped_column(primary_key=True)
    prompt: Mapped[str]
    seed: Mapped[int] = mapped_column(BigInteger)
    profile_name: Mapped[str] = mapped_column(index=True)
    profile_digest: Mapped[str] = mapped_column(ForeignKey("profiles.digest"))
    figures: Mapped[list[Any]]


class ArtifactRow(Base):
    """A manifest in the store."""

    __tablename__ = "artifacts"
    __table_args__ = (Index(None, "stage", "key"),)

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
    """

    __tablename__ = "batch_clips"
    __table_args__ = (
        CheckConstraint("state <> 'done' OR artifact_key IS NOT NULL", name="done_by_artifact"),
        Index(None, "batch_id", "state"),
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


class StageRunRow(Base):
    """One attempt at one stage of a clip in a batch."""

    __tablename__ = "stage_runs"
    __table_args__ = (
        ForeignKeyConstraint(
            ["batch_id", "clip_id"], ["batch_clips.batch_id", "batch_clips.clip_id"], ondelete="CASCADE"
        ),
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
    at: Mapped[datetime]


def json_fragment(text: str) -> str:
    """`text` as it stands inside a stored JSON string, for searching in one."""
    return json.dumps(text)[1:-1]
