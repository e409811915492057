"""The first tables: profiles, batches, clips, stage runs and the artifact index."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = ("profiles", "batches", "batch_rows_refused", "clips", "artifacts", "batch_clips", "stage_runs")


def upgrade() -> None:
    _create_batches()
    _create_clips()
    _create_artifacts()
    _create_batch_clips()
    _create_stage_runs()


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)


def _create_batches() -> None:
    op.create_table(
        "profiles",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_profiles")),
    )
    op.create_table(
        "batches",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("requested", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("clips_total", sa.Integer(), nullable=False),
        sa.Column("failure_limit", sa.Integer(), nullable=False),
        sa.Column("on_bad_rows", sa.Text(), nullable=False),
        sa.Column("dag_id", sa.Text(), nullable=True),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("requested_by", sa.Text(), nullable=True),
        sa.Column("parent_batch_id", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("batch_id", name=op.f("pk_batches")),
    )
    op.create_index(op.f("ix_batches_created_at"), "batches", ["created_at"])
    op.create_table(
        "batch_rows_refused",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("row_number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.batch_id"], name=op.f("fk_batch_rows_refused_batch_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("batch_id", "row_number", name=op.f("pk_batch_rows_refused")),
    )


def _create_clips() -> None:
    op.create_table(
        "clips",
        sa.Column("clip_id", sa.Text(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("profile_name", sa.Text(), nullable=False),
        sa.Column("profile_digest", sa.Text(), nullable=False),
        sa.Column("figures", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["profile_digest"], ["profiles.digest"], name=op.f("fk_clips_profile_digest")),
        sa.PrimaryKeyConstraint("clip_id", name=op.f("pk_clips")),
    )
    op.create_index(op.f("ix_clips_profile_name"), "clips", ["profile_name"])


def _create_artifacts() -> None:
    op.create_table(
        "artifacts",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("flags", sa.JSON(), nullable=False),
        sa.Column("make_seconds", sa.Float(53), nullable=True),
        sa.Column("code_version", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_artifacts")),
    )
    op.create_index(op.f("ix_artifacts_stage_key"), "artifacts", ["stage", "key"])


def _create_batch_clips() -> None:
    op.create_table(
        "batch_clips",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("clip_id", sa.Text(), nullable=False),
        sa.Column("names", sa.JSON(), nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("priority", sa.BigInteger(), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("failed_stage", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("artifact_key", sa.Text(), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("state <> 'done' OR artifact_key IS NOT NULL", name=op.f("ck_batch_clips_done_by_artifact")),
        sa.ForeignKeyConstraint(["artifact_key"], ["artifacts.key"], name=op.f("fk_batch_clips_artifact_key")),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.batch_id"], name=op.f("fk_batch_clips_batch_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["clip_id"], ["clips.clip_id"], name=op.f("fk_batch_clips_clip_id")),
        sa.PrimaryKeyConstraint("batch_id", "clip_id", name=op.f("pk_batch_clips")),
    )
    op.create_index(op.f("ix_batch_clips_artifact_key"), "batch_clips", ["artifact_key"])
    op.create_index(op.f("ix_batch_clips_batch_id_state"), "batch_clips", ["batch_id", "state"])
    op.create_index(op.f("ix_batch_clips_clip_id"), "batch_clips", ["clip_id"])


def _create_stage_runs() -> None:
    op.create_table(
        "stage_runs",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("clip_id", sa.Text(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("shard", sa.Integer(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("seconds", sa.Float(53), nullable=True),
        sa.Column("accelerator_seconds", sa.Float(53), nullable=True),
        sa.Column("peak_memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("host", sa.Text(), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("flags", sa.JSON(), nullable=False),
        sa.Column("artifact_key", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["batch_id", "clip_id"],
            ["batch_clips.batch_id", "batch_clips.clip_id"],
            name=op.f("fk_stage_runs_batch_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("batch_id", "clip_id", "stage", "attempt", name=op.f("pk_stage_runs")),
    )
