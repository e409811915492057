"""What was measured of delivered clips, what is expected of them, and the defects that this makes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("artifacts", sa.Column("measures", sa.JSON(), nullable=True))
    op.add_column("batch_clips", sa.Column("expect", sa.JSON(), nullable=True))
    op.add_column("batch_clips", sa.Column("defects", sa.JSON(), nullable=True))
    op.add_column("batch_clips", sa.Column("judged_by", sa.Text(), nullable=True))


def downgrade() -> None:
    for column in ("judged_by", "defects", "expect"):
        op.drop_column("batch_clips", column)
    op.drop_column("artifacts", "measures")
