"""The identity that a catalog shares with its store."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "identity",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("identity", sa.Text(), nullable=True),
        sa.Column("fault", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_identity")),
    )


def downgrade() -> None:
    op.drop_table("identity")
