"""Rows that come with a request in place of a file: in a form, from a program, pasted or uploaded on the page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magi2.batches.batch_file import rows_in
from magi2.batches.rows import ROW_COLUMNS, Row
from magi2.errors import InputError
from magi2.inputs.limits import MAX_INLINE_BYTES

INLINE_SOURCE = "rows of the request"
"""What a batch of them has in place of its file."""
INLINE_NAME = "rows"


@dataclass(frozen=True)
class InlineRows:
    """Rows as text: CSV with a header, JSON a line, or a JSON array."""

    text: str

    @classmethod
    def of(cls, rows: str | Sequence[Mapping[str, Any] | str]) -> InlineRows:
        """Rows as text or one by one. Raises InputError for what is neither, or is more than `MAX_INLINE_BYTES`."""
        if not isinstance(rows, str | list | tuple):
            raise InputError(f"rows is a {type(rows).__name__}, not text or a list of rows")
        text = rows if isinstance(rows, str) else "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        size = len(text.encode(errors="surrogatepass"))
        if size > MAX_INLINE_BYTES:
            raise InputError(f"the rows have {size} bytes, at most {MAX_INLINE_BYTES}", hint="put them into a file")
        return cls(text)

    def read(self) -> list[Row]:
        """As `read_rows` does it with a file."""
        return rows_in(self.text.encode(errors="surrogatepass"), ".csv" if self._is_table() else ".jsonl", "the rows")

    def _is_table(self) -> bool:
        """Whether the text begins with a header; a line that is JSON text is a prompt, unless it names a column."""
        start = self.text.lstrip("\ufeff \t\r\n")
        if not start.startswith('"'):
            return not start.startswith(("{", "["))
        try:
            return json.loads(start.partition("\n")[0]) in ROW_COLUMNS
        except ValueError:
            return True
