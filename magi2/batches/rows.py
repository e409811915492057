"""Rows of a batch as they are written, whatever the file's format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SUFFIXES = (".jsonl", ".csv", ".json", ".tsv")
"""Endings of batch files, wherever they come from."""
ROW_COLUMNS = (
    *("prompt", "prompt_file", "image", "seed", "profile", "priority", "tags", "name"),
    *("delivery_target", "delivery_name", "expect_motion", "expect_sound"),
)


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

    def refused(self, problem: str) -> Row:
        """The same row, not read."""
        return Row(self.number, {}, problem, self.place)
