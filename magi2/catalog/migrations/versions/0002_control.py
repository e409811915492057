"""Priority and budget of batches, the log of what people did to them, and what people were told of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Plain columns: making the table again, as SQLite needs for more than that, would take its rows' children along.
    op.add_column("batches", sa.Column("priority", sa.Integer(), server_default="0", nullable=False))
    op.add_column("batches", sa.Column("budget", sa.Float(53), nullable=True))
    op.create_table(
        "batch_actions",
        sa.Column("action_id", sa.Integer(), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("user_name", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("arguments", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.batch_id"], name=op.f("fk_batch_actions_batch_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("action_id", name=op.f("pk_batch_actions")),
    )
    op.create_index(op.f("ix_batch_actions_batch_id"), "batch_actions", ["batch_id"])
    op.create_table(
        "notices",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("kind", "subject", name=op.f("pk_notices")),
    )


def downgrade() -> None:
    op.drop_table("notices")
    op.drop_table("batch_actions")
    op.drop_column("batches", "budget")
    op.drop_column("batches", "priority")
