"""Clips of batches in the catalog."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, Text, bindparam, cast, exists, func, or_, select, update

from magi2.catalog.engine import Database
from magi2.catalog.quality import has_flag
from magi2.catalog.records import ClipRecord, ClipState, Page, PlannedClip, now
from magi2.catalog.statements import chunks, upsert
from magi2.catalog.states import CLIP_SOURCES, StateError
from magi2.catalog.tables import BatchClipRow, ClipRow, StageRunRow, json_fragment, plain_text
from magi2.types import Clip, Delivery, Expect, FigureImage, StageName


class ClipSort(StrEnum):
    """What a list of clips is ordered by."""

    UPDATED = "updated"
    PRIORITY = "priority"
    PROMPT = "prompt"
    PROFILE = "profile"
    SEED = "seed"
    SHARD = "shard"
    STATE = "state"


_SORT_COLUMNS: dict[ClipSort, Any] = {
    ClipSort.UPDATED: BatchClipRow.updated_at,
    ClipSort.PRIORITY: BatchClipRow.priority,
    ClipSort.PROMPT: ClipRow.prompt,
    ClipSort.PROFILE: ClipRow.profile_name,
    ClipSort.SEED: ClipRow.seed,
    ClipSort.SHARD: BatchClipRow.shard,
    ClipSort.STATE: BatchClipRow.state,
}


@dataclass(frozen=True, kw_only=True)
class ClipQuery:
    """Which clips: all conditions that are given must hold. `text` is looked for in prompt, names and clip id.

    `failed_stage`, `reason` and `error_code` are those of a failure. `flag` is one of a clip's flags, see `has_flag`.
    """

    batch_id: str | None = None
    state: ClipState | None = None
    profile: str | None = None
    tag: str | None = None
    text: str | None = None
    shard: int | None = None
    failed_stage: str | None = None
    reason: str | None = None
    error_code: str | None = None
    flag: str | None = None


class Clips:
    """The clips of batches and where each stands. All raise InfrastructureError when the database does not answer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, batch_id: str, clips: Iterable[PlannedClip]) -> None:
        """Enter the planned clips of a batch, in many small transactions that may be repeated.

        Of a clip that is there, names, tags, priority, places and shard follow the new plan; its state stays, but for
        one that the plan found finished. Raises StateError when the batch or the clip's profile was not entered, or a
        finished clip's artifact is not in the index.
        """
        for chunk in chunks(clips):
            self._database.write(insert_clips, batch_id, chunk)

    def mark(
        self,
        batch_id: str,
        clip_ids: Iterable[str],
        state: ClipState,
        *,
        failed_stage: StageName | None = None,
        reason: str | None = None,
    ) -> None:
        """Move clips to a state, all of them or none; `reason` is for people.

        Raises StateError when one is absent or cannot get there from where it is. No clip becomes done this way, but
        by the result of its last stage.
        """
        if state is ClipState.DONE:
            raise StateError("a clip becomes done by the result of its last stage and not otherwise")
        distinct = list(dict.fromkeys(clip_ids))
        values = {"state": state, "failed_stage": failed_stage, "reason": reason, "updated_at": now()}

        def work(connection: Connection) -> None:
            for chunk in chunks(distinct):
                these = _these(batch_id, chunk)
                query = update(BatchClipRow).where(*these, BatchClipRow.state.in_(CLIP_SOURCES[state]))
                if connection.execute(query.values(**values)).rowcount != len(chunk):
                    raise StateError(_refusal(connection, batch_id, chunk, state))

        self._database.write(work)

    def set_aside(
        self,
        batch_id: str,
        clip_ids: Iterable[str],
        state: ClipState,
        reason: str | None,
        *,
        keep: Collection[ClipState] = (ClipState.DONE,),
    ) -> None:
        """Make clips skipped, cancelled or waiting, whatever became of them so far, but for those in states to keep."""
        values = {"state": state, "failed_stage": None, "reason": reason, "updated_at": now()}

        def work(connection: Connection, chunk: list[str]) -> None:
            query = update(BatchClipRow).where(*_these(batch_id, chunk), BatchClipRow.state.not_in(keep))
            connection.execute(query.values(**values))

        for chunk in chunks(clip_ids):
            self._database.write(work, chunk)

    def place(self, batch_id: str, clip_id: str, deliveries: Sequence[Delivery]) -> None:
        """Enter where a clip was brought; one that the batch does not have is left out."""
        values = {"deliveries": [asdict(each) for each in deliveries]}
        query = update(BatchClipRow).where(*_these(batch_id, [clip_id])).values(**values)
        self._database.write(lambda connection: connection.execute(query))

    def get(self, batch_id: str, clip_id: str) -> ClipRecord | None:
        """A clip of a batch, or None."""
        query = _records().where(BatchClipRow.batch_id == batch_id, BatchClipRow.clip_id == clip_id)
        row = self._database.read(lambda connection: connection.execute(query).one_or_none())
        return None if row is None else _record(row)

    def search(
        self,
        query: ClipQuery = ClipQuery(),
        *,
        sort: ClipSort = ClipSort.UPDATED,
        descending: bool = True,
        offset: int = 0,
        limit: int = 50,
    ) -> Page[ClipRecord]:
        """Clips that meet the query, in an order that is the same on every page; unknown shards come last."""
        conditions = clip_conditions(query)
        column = _SORT_COLUMNS[sort]
        ordered = (column.desc() if descending else column.asc()).nulls_last()
        rows = _records().where(*conditions).order_by(ordered, BatchClipRow.batch_id, BatchClipRow.clip_id)
        count = select(func.count()).select_from(BatchClipRow).join(ClipRow).where(*conditions)

        def work(connection: Connection) -> Page[ClipRecord]:
            found = [_record(row) for row in connection.execute(rows.offset(offset).limit(limit))]
            return Page(found, connection.scalar(count) or 0)

        return self._database.read(work)


def insert_clips(connection: Connection, batch_id: str, clips: Iterable[PlannedClip]) -> None:
    """Enter planned clips; see `Clips.add`."""
    planned = [(item.clip.clip_id, item) for item in clips]
    upsert(
        connection,
        ClipRow,
        [clip_row(clip_id, item.clip) for clip_id, item in planned],
        update=["profile_name", "figures", "prompt_digest"],
    )
    rows = [batch_clip_row(batch_id, clip_id, item) for clip_id, item in planned]
    placement = ["names", "first_name", "tags", "priority", "deliveries", "shard", "expect", "judged_by"]
    waiting = [row for row in rows if row["state"] != ClipState.DONE]
    upsert(connection, BatchClipRow, waiting, update=placement)
    done = [row for row in rows if row["state"] == ClipState.DONE]
    outcome = ["state", "failed_stage", "reason", "artifact_key", "updated_at"]
    upsert(connection, BatchClipRow, done, update=placement + outcome)


def clip_row(clip_id: str, clip: Clip) -> dict[str, Any]:
    """The columns of a clip."""
    figures = [_figure_columns(figure) for figure in clip.figures]
    return {
        "clip_id": clip_id,
        "prompt": clip.prompt,
        "seed": clip.seed,
        "profile_name": clip.profile_name,
        "profile_digest": clip.profile_digest,
        "figures": figures,
        "prompt_digest": hashlib.sha256(plain_text(clip.prompt).encode()).hexdigest(),
    }


def _figure_columns(figure: FigureImage) -> dict[str, Any]:
    """A reference image as it lies in a column; those of older versions have no treatment."""
    columns = {"number": figure.number, "path": str(figure.path), "sha256": figure.sha256}
    return {**columns, "treatment": list(figure.treatment)} if figure.treatment else columns


def batch_clip_row(batch_id: str, clip_id: str, planned: PlannedClip) -> dict[str, Any]:
    """The columns of a clip in a batch, as planned."""
    return {
        "batch_id": batch_id,
        "clip_id": clip_id,
        "names": list(planned.clip.names),
        "tags": list(planned.clip.tags),
        "priority": planned.clip.priority,
        "deliveries": [asdict(each) for each in planned.clip.deliveries],
        "shard": planned.shard,
        "state": ClipState.DONE if planned.is_done else ClipState.WAITING,
        "failed_stage": None,
        "reason": None,
        "artifact_key": planned.artifact_key,
        "updated_at": now(),
        "expect": asdict(planned.clip.expect),
        "defects": None,
        "judged_by": None,
        "first_name": next(iter(planned.clip.names), ""),
    }


def outcome(
    clip_id: str,
    state: ClipState,
    *,
    failed_stage: str | None = None,
    reason: str | None = None,
    artifact_key: str | None = None,
) -> dict[str, Any]:
    """What became of a clip, for `settle_clips`."""
    values = {"state": state, "failed_stage": failed_stage, "reason": reason, "artifact_key": artifact_key}
    return {"for_clip": clip_id, **values}


def settle_clips(connection: Connection, batch_id: str, outcomes: Sequence[Mapping[str, Any]]) -> None:
    """Move clips of a batch to the states that were reached, whatever they were in."""
    if outcomes:
        names = outcomes[0].keys() - {"for_clip"}
        query = update(BatchClipRow).where(
            BatchClipRow.batch_id == batch_id, BatchClipRow.clip_id == bindparam("for_clip")
        )
        values: dict[str, Any] = {name: bindparam(name) for name in names}
        values |= {"updated_at": now(), "judged_by": None}
        connection.execute(query.values(values), outcomes)


def keep_files(connection: Connection, batch_id: str, keys: Mapping[str, str | None]) -> None:
    """Enter the files of clips, by id, that are still to be brought somewhere."""
    rows = [{"for_clip": clip_id, "key": key} for clip_id, key in keys.items()]
    if rows:
        this = BatchClipRow.batch_id == batch_id, BatchClipRow.clip_id == bindparam("for_clip")
        connection.execute(update(BatchClipRow).where(*this).values(artifact_key=bindparam("key")), rows)


def has_target() -> ColumnElement[bool]:
    """Whether a clip is to be brought anywhere."""
    return func.coalesce(cast(BatchClipRow.deliveries, Text), "[]") != "[]"


def _these(batch_id: str, clip_ids: list[str]) -> tuple[ColumnElement[bool], ...]:
    return BatchClipRow.batch_id == batch_id, BatchClipRow.clip_id.in_(clip_ids)


def _refusal(connection: Connection, batch_id: str, clip_ids: list[str], state: ClipState) -> str:
    """Why not all of these clips can become `state`. The statement before has changed those that can."""
    query = select(BatchClipRow.clip_id, BatchClipRow.state).where(*_these(batch_id, clip_ids))
    states = {clip_id: found for clip_id, found in connection.execute(query)}
    wrong = next(clip_id for clip_id in clip_ids if states.get(clip_id) != state)
    found = states.get(wrong)
    return f"batch {batch_id}: clip {wrong[:12]} " + (
        f"is {found} and cannot become {state}" if found else "is not in the catalog"
    )


def clip_conditions(query: ClipQuery) -> list[ColumnElement[bool]]:
    """What a query asks of the rows of `BatchClipRow` and, for profile and text, `ClipRow`."""
    equal = (
        (BatchClipRow.batch_id, query.batch_id),
        (BatchClipRow.state, query.state),
        (BatchClipRow.shard, query.shard),
        (BatchClipRow.failed_stage, query.failed_stage),
        (BatchClipRow.reason, query.reason),
        (ClipRow.profile_name, query.profile),
    )
    conditions = [column == value for column, value in equal if value is not None]
    if query.tag is not None:
        # Stored as a JSON list, in which a quoted text can be nothing but a whole tag.
        conditions.append(cast(BatchClipRow.tags, Text).contains(f'"{json_fragment(query.tag)}"', autoescape=True))
    if query.error_code is not None:
        conditions.append(_failed_with(query.error_code))
    if query.flag is not None:
        conditions.append(has_flag(query.flag))
    if query.text:
        conditions.append(
            or_(
                ClipRow.prompt.icontains(query.text, autoescape=True),
                cast(BatchClipRow.names, Text).icontains(json_fragment(query.text), autoescape=True),
                ClipRow.clip_id.startswith(query.text.lower(), autoescape=True),
            )
        )
    return conditions


def _failed_with(error_code: str) -> ColumnElement[bool]:
    """Whether an attempt at the stage that a clip failed in ended with this error."""
    return exists().where(
        StageRunRow.batch_id == BatchClipRow.batch_id,
        StageRunRow.clip_id == BatchClipRow.clip_id,
        StageRunRow.stage == BatchClipRow.failed_stage,
        StageRunRow.error_code == error_code,
    )


def _records() -> Select[*tuple[Any, ...]]:
    return select(BatchClipRow.__table__, ClipRow.__table__).join(ClipRow, ClipRow.clip_id == BatchClipRow.clip_id)


def _record(row: Row[Any]) -> ClipRecord:
    clip = Clip(
        prompt=row.prompt,
        seed=row.seed,
        profile_name=row.profile_name,
        profile_digest=row.profile_digest,
        figures=tuple(
            FigureImage(each["number"], Path(each["path"]), each["sha256"], tuple(each.get("treatment", ())))
            for each in row.figures
        ),
        names=tuple(row.names),
        tags=tuple(row.tags),
        priority=row.priority,
        deliveries=tuple(Delivery(each["target"], each["name"]) for each in row.deliveries or ()),
        expect=Expect(**(row.expect or {})),
    )
    return ClipRecord(
        batch_id=row.batch_id,
        clip_id=row.clip_id,
        clip=clip,
        shard=row.shard,
        state=ClipState(row.state),
        failed_stage=row.failed_stage,
        reason=row.reason,
        artifact_key=row.artifact_key,
        updated_at=row.updated_at,
    )
