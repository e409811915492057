"""Rows of a batch as they are written, whatever the file's format, and the columns that they may have."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from magi2.config.row_settings import keys_of_profiles, settings_of_rows
from magi2.config.strict import nearest
from magi2.errors import InputError
from magi2.inputs.text import quoted

PARQUET = ".parquet"
SUFFIXES = (".jsonl", ".csv", ".json", ".tsv", PARQUET)
"""Endings of batch files, wherever they come from."""
ROW_COLUMNS = (
    *("prompt", "prompt_file", "negative_prompt", "image", "seed", "seeds", "variants", "matrix"),
    *("profile", "priority", "tags", "name"),
    *("delivery_target", "delivery_name", "expect_motion", "expect_sound"),
)
SAME_COLUMNS = {
    "negative_prompt": "text.negative_text",
    "delivery.target": "delivery_target",
    "delivery.name": "delivery_name",
    "quality.expect.motion": "expect_motion",
    "quality.expect.sound": "expect_sound",
}
"""Two names of one thing: the second is the one that is read."""
ALL_COLUMNS: Collection[str] = dict.fromkeys((*ROW_COLUMNS, *SAME_COLUMNS, *settings_of_rows())).keys()
"""All of them: a row's own, and the keys of its profile that it may set."""
_HINTED = 3
"""Columns that a hint names at most."""


@dataclass(frozen=True)
class Row:
    """One row of a batch as written; `number` is the line of the file in which it begins, from 1.

    `problem` says why the row could not even be read; then `values` is empty. `place` says where it is when several
    begin in one line: they are numbered through then.
    """

    number: int
    values: Mapping[str, Any]
    problem: str | None = None
    place: str | None = None

    @property
    def where(self) -> str:
        """Its line, and its number among those that begin there."""
        return self.place or f"line {self.number}"

    def refused(self, problem: str) -> Row:
        """The same row, not read."""
        return Row(self.number, {}, problem, self.place)


def unknown_column(name: str) -> tuple[str, str]:
    """Why rows have no column of this name, and a hint that names the nearest of those that they have."""
    inside = [column for column in ALL_COLUMNS if column.startswith(f"{name}.")]
    ending = [column for column in ALL_COLUMNS if column.endswith(f".{name}")]
    if inside:
        hint = f"rows set {', '.join(inside[:_HINTED])}{' and more' * (len(inside) > _HINTED)}"
    elif ending:
        hint = f"did you mean {' or '.join(map(repr, ending[:_HINTED]))}?"
    else:
        hint = nearest(name, [column for column in ALL_COLUMNS if "." in column] if "." in name else ROW_COLUMNS)
    if name in keys_of_profiles():
        return f"column {quoted(name)}: no row sets that, its profile does", hint
    return f"unknown column {quoted(name)}", hint


def row_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a row says, by the names that are read; empty cells and nulls say nothing.

    Raises: InputError for a column that rows do not have, and for two values of one.
    """
    said: dict[str, Any] = {}
    for name, value in _flat(values, ""):
        if name not in ALL_COLUMNS:
            message, hint = unknown_column(name)
            raise InputError(message, hint=hint)
        if value in (None, ""):
            continue
        if (column := SAME_COLUMNS.get(name, name)) in said:
            raise InputError(f"gives two values for {quoted(column)}")
        said[column] = value
    return said


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Members of sections by dotted key, where a row writes `{"preview": {"steps": 4}}`."""
    for key, value in values.items():
        if f"{prefix}{key}" in keys_of_profiles() and isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
