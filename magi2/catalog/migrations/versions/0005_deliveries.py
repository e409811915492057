"""Where the clips of a batch are brought."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A plain column: see the second migration. PostgreSQL cannot compare a default that is JSON with another.
    op.add_column("batch_clips", sa.Column("deliveries", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("batch_clips", "deliveries")
