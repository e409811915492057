"""An index of the sizes of a stage's artifacts, from which alone they are counted and added up."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(op.f("ix_artifacts_stage_size_bytes"), "artifacts", ["stage", "size_bytes"])


def downgrade() -> None:
    op.drop_index("ix_artifacts_stage_size_bytes", "artifacts")
