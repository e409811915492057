"""Numbers that are kept beside what they count, what finds clips without a scan, and when a batch is to stop.

Triggers note which shards a transaction changed; `magi2.catalog.kept` counts those before it ends, and at the end of
the migration all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_KEPT = ("changed_counts", "shard_clips", "shard_runs", "total_clips", "total_runs")
_INDEXES: dict[str, list[tuple[str, ...]]] = {
    "batches": [("state",)],
    "clips": [("prompt_digest",)],
    "batch_clips": [
        ("batch_id", "state", "updated_at"),
        ("batch_id", "shard"),
        ("batch_id", "updated_at"),
        ("batch_id", "first_name"),
        ("state", "updated_at"),
        ("state", "judged_by"),
    ],
    "stage_runs": [("finished_at", "stage", "state", "seconds")],
    "weight_loads": [("at",)],
}
_FLAGGED = {"artifacts": ("flags", "key"), "batch_clips": ("defects", "batch_id"), "stage_runs": ("flags", "batch_id")}


def upgrade() -> None:
    _add_columns()
    _fill_columns()
    _create_kept()
    op.drop_index("ix_batch_clips_batch_id_state", "batch_clips")
    for table, indexes in _INDEXES.items():
        for columns in indexes:
            op.create_index(op.f(f"ix_{table}_{'_'.join(columns)}"), table, list(columns))
    for table, (flags, column) in _FLAGGED.items():
        where = sa.text(f"CAST({flags} AS TEXT) <> '[]'")
        op.create_index(op.f(f"ix_{table}_flagged"), table, [column], sqlite_where=where, postgresql_where=where)
    for statement in _triggers(_is_sqlite()):
        op.execute(statement)
    op.execute(
        "INSERT INTO changed_counts (batch_id, shard) "
        "SELECT batch_id, shard FROM batch_clips UNION SELECT batch_id, shard FROM weight_loads"
    )


def _is_sqlite() -> bool:
    return op.get_bind().dialect.name == "sqlite"


def _add_columns() -> None:
    # Plain columns: see the second migration.
    op.add_column("batches", sa.Column("on_limit", sa.Text(), nullable=True))
    op.add_column("batches", sa.Column("failure_streak", sa.Integer(), server_default="0", nullable=False))
    op.add_column("clips", sa.Column("prompt_digest", sa.Text(), nullable=True))
    op.add_column("batch_clips", sa.Column("first_name", sa.Text(), nullable=True))
    for name in ("seconds", "accelerator_seconds"):
        op.add_column("batch_clips", sa.Column(name, sa.Float(53), server_default="0", nullable=False))


def _fill_columns() -> None:
    if _is_sqlite():
        connection = op.get_bind().connection.driver_connection
        assert connection is not None
        connection.create_function("magi2_sha256", 1, _sha256, deterministic=True)
        digest, name = "magi2_sha256(prompt)", "json_extract(names, '$[0]')"
    else:
        digest = "encode(sha256(convert_to(prompt, 'UTF8')), 'hex')"
        name = r"CASE WHEN strpos(names::text, '\u0000') = 0 THEN names ->> 0 END"  # which no text can hold
    op.execute(f"UPDATE clips SET prompt_digest = {digest}")
    op.execute(f"UPDATE batch_clips SET first_name = coalesce({name}, '')")
    op.execute(_ADD_UP)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _create_kept() -> None:
    op.create_table(
        "changed_counts",
        *_place(),
        sa.Column("stage", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_changed_counts")),
    )
    op.create_table(
        "shard_clips",
        *_place(),
        *_texts("profile_digest", "profile_name", "state"),
        sa.Column("failed_stage", sa.Text(), nullable=True),
        *(sa.Column(name, sa.Boolean(), nullable=False) for name in ("has_target", "is_reused", "is_stored")),
        *_texts("defects"),
        sa.Column("clips", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_shard_clips")),
    )
    op.create_index(op.f("ix_shard_clips_batch_id_shard"), "shard_clips", ["batch_id", "shard"])
    op.create_table(
        "shard_runs",
        *_place(),
        *_texts("stage", "state", "outcome", "clip_state"),
        sa.Column("is_last", sa.Boolean(), nullable=False),
        *_texts("error_code"),
        *_sums(),
        sa.Column("peak_memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("began", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_shard_runs")),
    )
    op.create_index(op.f("ix_shard_runs_batch_id_shard_stage"), "shard_runs", ["batch_id", "shard", "stage"])
    op.create_table(
        "total_clips",
        sa.Column("lane", sa.Integer(), autoincrement=False, nullable=False),
        *_texts("state", "defects"),
        sa.Column("clips", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("lane", "state", "defects", name=op.f("pk_total_clips")),
    )
    op.create_table(
        "total_runs",
        sa.Column("lane", sa.Integer(), autoincrement=False, nullable=False),
        *_texts("stage", "state"),
        sa.Column("is_last", sa.Boolean(), nullable=False),
        *_texts("error_code"),
        *_sums(),
        sa.PrimaryKeyConstraint("lane", "stage", "state", "is_last", "error_code", name=op.f("pk_total_runs")),
    )


def _place() -> list[sa.Column[Any]]:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # which counts up by itself on both
    key: list[sa.Column[Any]] = [sa.Column("number", number, nullable=False), *_texts("batch_id")]
    return [*key, sa.Column("shard", sa.Integer(), nullable=True)]


def _texts(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def _sums() -> list[sa.Column[float]]:
    seconds = [sa.Column(name, sa.Float(53), nullable=False) for name in ("seconds", "accelerator_seconds")]
    return [sa.Column("runs", sa.Integer(), nullable=False), *seconds]


# What a transaction changed is noted once. Nobody waits for another's note: it has no key but its number.
_NOTE_CLIP = """
INSERT INTO changed_counts (batch_id, shard)
SELECT {row}.batch_id, {row}.shard WHERE NOT EXISTS (
    SELECT 1 FROM changed_counts c
    WHERE c.batch_id = {row}.batch_id AND c.shard IS NOT DISTINCT FROM {row}.shard AND c.stage IS NULL);
"""
_NOTE_NAME = """
INSERT INTO changed_counts (batch_id, shard) SELECT DISTINCT batch_id, shard FROM batch_clips
WHERE clip_id = {row}.clip_id;
"""
_NOTE_RUN = """
INSERT INTO changed_counts (batch_id, shard, stage)
SELECT b.batch_id, b.shard, {row}.stage FROM batch_clips b
WHERE b.batch_id = {row}.batch_id AND b.clip_id = {row}.clip_id AND NOT EXISTS (
    SELECT 1 FROM changed_counts c
    WHERE c.batch_id = b.batch_id AND c.shard IS NOT DISTINCT FROM b.shard AND c.stage = {row}.stage);
"""
_NOTE_LOAD = """
INSERT INTO changed_counts (batch_id, shard, stage) VALUES ({row}.batch_id, {row}.shard, {row}.stage);
"""
_ADD_UP = """
UPDATE batch_clips SET (seconds, accelerator_seconds) = (
    SELECT coalesce(sum(r.seconds), 0), coalesce(sum(r.accelerator_seconds), 0) FROM stage_runs r
    WHERE r.batch_id = batch_clips.batch_id AND r.clip_id = batch_clips.clip_id)
"""
_OF_CLIP = "WHERE batch_id = {row}.batch_id AND clip_id = {row}.clip_id"
_LOCK_CLIP = f"PERFORM 1 FROM batch_clips {_OF_CLIP} FOR UPDATE;"
"""Before its seconds are added up on a server: what another attempt writes is there by then, or comes after."""
_COUNTED = ("shard", "state", "failed_stage", "deliveries", "artifact_key", "defects")
_TOOK = ("seconds", "accelerator_seconds")


def _triggers(is_sqlite: bool) -> Iterator[str]:
    seconds = ("" if is_sqlite else _LOCK_CLIP) + _ADD_UP + _OF_CLIP + ";"
    for event, row, rows in (("INSERT", "NEW", ["NEW"]), ("UPDATE", "NEW", ["OLD", "NEW"]), ("DELETE", "OLD", ["OLD"])):
        clips = _changed(_COUNTED) if event == "UPDATE" else ""
        taken = _changed(_TOOK) if event == "UPDATE" else " OR ".join(f"{row}.{name} IS NOT NULL" for name in _TOOK)
        bodies = {
            ("batch_clips", "counts"): (clips, "".join(_NOTE_CLIP.format(row=each) for each in rows)),
            ("stage_runs", "counts"): ("", _NOTE_RUN.format(row=row)),
            ("stage_runs", "seconds"): (taken, seconds.format(row=row)),
            ("weight_loads", "counts"): ("", _NOTE_LOAD.format(row=row)),
        }
        if event == "UPDATE":
            bodies["clips", "counts"] = _changed(["profile_name"]), _NOTE_NAME.format(row=row)
        for (table, what), (when, body) in bodies.items():
            yield from _trigger(is_sqlite, f"{table}_{event.lower()}_{what}", f"AFTER {event} ON {table}", when, body)


def _changed(columns: Sequence[str]) -> str:
    return " OR ".join(f"CAST(OLD.{name} AS TEXT) IS DISTINCT FROM CAST(NEW.{name} AS TEXT)" for name in columns)


def _trigger(is_sqlite: bool, name: str, event: str, when: str, body: str) -> Iterator[str]:
    condition = f" WHEN ({when})" if when else ""
    if is_sqlite:
        statement = f"CREATE TRIGGER {name} {event} FOR EACH ROW{condition} BEGIN {body} END"
        yield statement.replace("IS NOT DISTINCT FROM", "IS").replace("IS DISTINCT FROM", "IS NOT")
    else:
        function = f"magi2_{name}()"
        yield f"CREATE FUNCTION {function} RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NULL; END $$"
        yield f"CREATE TRIGGER {name} {event} FOR EACH ROW{condition} EXECUTE FUNCTION {function}"


def _drop_triggers() -> Iterator[str]:
    for create in _triggers(_is_sqlite()):
        kind, name = create.split()[1:3]
        if kind == "TRIGGER" and _is_sqlite():
            yield f"DROP TRIGGER {name}"
        elif kind == "FUNCTION":
            yield f"DROP FUNCTION {name} CASCADE"


def downgrade() -> None:
    for statement in _drop_triggers():
        op.execute(statement)
    for table in _FLAGGED:
        op.drop_index(f"ix_{table}_flagged", table)
    for table, indexes in _INDEXES.items():
        for columns in indexes:
            op.drop_index(f"ix_{table}_{'_'.join(columns)}", table)
    op.create_index(op.f("ix_batch_clips_batch_id_state"), "batch_clips", ["batch_id", "state"])
    for table in reversed(_KEPT):
        op.drop_table(table)
    for column in ("accelerator_seconds", "seconds", "first_name"):
        op.drop_column("batch_clips", column)
    op.drop_column("clips", "prompt_digest")
    for column in ("failure_streak", "on_limit"):
        op.drop_column("batches", column)
