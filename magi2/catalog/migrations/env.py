"""Run by Alembic inside the transaction that `magi2.catalog.migrate` began."""

from __future__ import annotations

from alembic import context

from magi2.catalog.tables import VERSION_TABLE, Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
context.run_migrations()
