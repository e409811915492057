"""Rows of CSV, read strictly: a quotation mark too few or too many must not make other prompts of a table.

A broken row costs itself alone. What cannot be said of one row (separator, header, a second header) is said once.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from magi2.batches.rows import ALL_COLUMNS, Row, unknown_column
from magi2.inputs.limits import MAX_ROW_CHARS, MAX_ROWS

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_PROMPTS = {"prompt", "prompt_file"}
_NUMBERS = {"seed", "priority", "variants"}
_TOLD_SEPARATOR = re.compile(r'"?sep=(.)"?[;,\t|\s]*', re.IGNORECASE)
_WHOLE = re.compile(r"\s*[+-]?[0-9]*\s*")
_BLANK_LINES = re.compile(r"\s*\n")
_OPEN = "a quotation mark opens a cell that has no end (add the closing one; double the marks inside a cell)"
_AFTER = "text follows the closing quotation mark of a cell{place} (double the marks inside a cell)"
_STRAY = "has a quotation mark inside a cell that is not quoted"
_BETWEEN = "stands between two lines with broken quotation marks, perhaps inside a cell"
_SPACED = "has a cell that begins with a blank: does it belong to the text before the {separator}?"
_SWALLOWED = (
    "has a quoted cell whose lines look like rows: is a quotation mark missing? (if none is, give the row as JSON)"
)
_QUOTE = "quote a cell that holds a {separator}, a line end or a quotation mark, and double the marks in it"


def csv_rows(text: str) -> Iterator[Row]:
    """The rows below the header of a table.

    The separator is told by a line `sep=`, or by the header. Raises: ValueError when it cannot be told, and for a
    header that names what is no column, nothing, or a column twice, also one that stands further down.
    """
    table = _Table.of(text)
    held: list[Row] | None = None
    for record in _with_cells(table.records()):
        row = table.row(record)
        if record.breaks_quotes:
            # Between two broken lines may lie the rest of one cell; a cell with both its marks shows that it does not.
            yield from (between.refused(_BETWEEN) for between in held or ())
            yield row
            held = [] if record.problem or held is not None else None
        elif held is None or record.has_quotes or len(held) > MAX_ROWS:
            yield from (*(held or ()), row)
            held = None
        else:
            held.append(row)
    yield from held or ()


def _with_cells(records: Iterator[_Record]) -> Iterator[_Record]:
    """Those in which anything stands; spreadsheets end in others. Raises ValueError when these have no end."""
    empty = 0
    for record in records:
        if not record.is_empty:
            yield record
        elif (empty := empty + 1) > MAX_ROWS:
            raise ValueError(f"there are more than {MAX_ROWS} rows of empty cells")


@dataclass(frozen=True)
class _Record:
    """A row as it stands in the file from `line` on; `problem` says why it has no cells."""

    line: int
    raw: str
    cells: Sequence[str] = ()
    problem: str | None = None

    @property
    def is_empty(self) -> bool:
        return not self.problem and not any(cell.strip() for cell in self.cells)

    @property
    def has_quotes(self) -> bool:
        return '"' in self.raw

    @property
    def breaks_quotes(self) -> bool:
        """Whether a quotation mark stands where none may."""
        return bool(self.problem) or (self.has_quotes and any('"' in cell for _, cell in self._bare()))

    @property
    def begins_with_blank(self) -> bool:
        """Whether a cell that is not quoted does so after a separator."""
        return any(index and cell[:1].isspace() and cell.strip() for index, cell in self._bare())

    def _bare(self) -> Iterator[tuple[int, str]]:
        """The cells that are not quoted, each with its index."""
        at = 0
        for index, cell in enumerate(self.cells):
            if self.raw.startswith('"', at):
                at += len(cell) + cell.count('"') + 3
            else:
                at += len(cell) + 1
                yield index, cell


class _Lines(Iterator[str]):
    """The lines of a text with their ends; `at` and `line` tell where the next one begins."""

    def __init__(self, text: str, at: int = 0, line: int = 1) -> None:
        self.text, self.at, self.line = text, at, line

    def __next__(self) -> str:
        if self.at == len(self.text):
            raise StopIteration
        start, self.at = self.at, self.text.find("\n", self.at) + 1 or len(self.text)
        self.line += 1
        if self.at - start > MAX_ROW_CHARS:
            raise csv.Error(f"has {self.at - start} characters in one line, at most {MAX_ROW_CHARS}")
        return self.text[start : self.at]

    def skip_blank(self) -> None:
        if blank := _BLANK_LINES.match(self.text, self.at):
            self.line += blank[0].count("\n")
            self.at = blank.end()


def _records(lines: _Lines, separator: str) -> Iterator[_Record]:
    """The rest of a text in records. After a broken one the next line is tried."""
    csv.field_size_limit(MAX_ROW_CHARS)
    reader = csv.reader(lines, delimiter=separator, strict=True)
    while True:
        lines.skip_blank()
        start, line = lines.at, lines.line
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problem = _reason(error, line, lines.line - 1)
            lines.at, lines.line = lines.text.find("\n", start) + 1 or len(lines.text), line + 1
            yield _Record(line, lines.text[start : lines.at], problem=problem)
            reader = csv.reader(lines, delimiter=separator, strict=True)
        else:
            yield _Record(line, lines.text[start : lines.at].removesuffix("\n"), cells)


def _reason(error: csv.Error, first: int, last: int) -> str:
    message = str(error)
    if message.startswith("has "):
        return message
    if "expected after" in message:
        return _AFTER.format(place=f", in line {last}" if last > first else "")
    return _OPEN


@dataclass(frozen=True)
class _Table:
    """What the header says of all rows, and where these begin."""

    text: str
    separator: str
    columns: tuple[str, ...]
    start: int
    line: int

    @classmethod
    def of(cls, text: str) -> _Table:
        lines = _Lines(text)
        lines.skip_blank()
        told = _TOLD_SEPARATOR.fullmatch(text[lines.at : text.find("\n", lines.at) + 1 or len(text)])
        if told:
            if told[1] not in SEPARATORS:
                raise ValueError(f"line {lines.line}: sep= names none of {', '.join(SEPARATORS.values())}")
            next(lines)
            lines.skip_blank()
        first = text[lines.at : text.find("\n", lines.at) + 1 or len(text)]
        separator = told[1] if told else _separator(first[:MAX_ROW_CHARS])
        header = next(_records(lines, separator), _Record(lines.line, ""))
        columns = tuple(cell.strip() for cell in header.cells)
        if problem := header.problem or _header_problem(header, columns, separator):
            raise ValueError(f"line {header.line}: the header {problem}")
        return cls(text, separator, columns, lines.at, lines.line)

    def records(self) -> Iterator[_Record]:
        """Those below the header."""
        return _records(_Lines(self.text, self.start, self.line), self.separator)

    def row(self, record: _Record) -> Row:
        """A record as a row. Raises ValueError for a header of another order."""
        problem = record.problem or self._header_again(record) or self._problem(record)
        if problem:
            return Row(record.line, {}, problem)
        return Row(record.line, dict(zip(self.columns, map(str.strip, record.cells), strict=True)))

    def _header_again(self, record: _Record) -> str | None:
        names = tuple(cell.strip().casefold() for cell in record.cells)
        if names[0] not in ALL_COLUMNS or not all(name in ALL_COLUMNS for name in names) or _PROMPTS.isdisjoint(names):
            return None
        if names != self.columns:
            raise ValueError(f"line {record.line}: a second header: these are two files in one, which read apart")
        return "is the header again: were two files joined?"

    def _problem(self, record: _Record) -> str | None:
        separator = SEPARATORS[self.separator]
        if record.breaks_quotes:
            return f"{_STRAY} ({_QUOTE.format(separator=separator)})"
        if len(record.cells) != len(self.columns):
            few = "fewer" if len(record.cells) < len(self.columns) else "more"
            count = f"{few} cells than the header has columns, {len(record.cells)} for {len(self.columns)}"
            return f"has {count} ({_QUOTE.format(separator=separator)})"
        if len(self.columns) == 1:
            return None
        if record.begins_with_blank:
            return f"{_SPACED.format(separator=separator)} ({_QUOTE.format(separator=separator)})"
        return _SWALLOWED if self._holds_rows(record) else None

    def _holds_rows(self, record: _Record) -> bool:
        """Whether each line of a record would be a row by itself, or one that goes on has a number where rows do."""
        if "\n" not in record.raw:
            return False
        lines = [line.split(self.separator) for line in record.raw.replace('"', "").split("\n") if line.strip()]
        whole = [cells for cells in lines if self._looks_whole(cells)]
        if len(lines) > 1 and len(whole) == len(lines):
            return True
        return any(cells is not lines[-1] and self._has_number(cells) for cells in whole)

    def _looks_whole(self, cells: Sequence[str]) -> bool:
        return (
            sum(bool(cell.strip()) for cell in cells) > 1
            and len(cells) == len(self.columns)
            and all(
                not (index and cell[:1].isspace()) and (name not in _NUMBERS or bool(_WHOLE.fullmatch(cell)))
                for index, (name, cell) in enumerate(zip(self.columns, cells, strict=True))
            )
        )

    def _has_number(self, cells: Sequence[str]) -> bool:
        return any(name in _NUMBERS and cell.strip() for name, cell in zip(self.columns, cells, strict=True))


def _separator(header: str) -> str:
    """The separator of a header: the one that makes columns of it."""
    found = [sign for sign in SEPARATORS if sign in header]
    fitting = [sign for sign in found if all(cell.strip(' "\n') in ALL_COLUMNS for cell in header.split(sign))]
    if fitting or len(found) < 2:
        return (fitting or found or [","])[0]
    return max(found, key=lambda sign: sum(cell.strip(' "\n') in ALL_COLUMNS for cell in header.split(sign)))


def _header_problem(header: _Record, columns: Sequence[str], separator: str) -> str | None:
    for number, name in enumerate(columns, start=1):
        if not name:
            return f"has no name for column {number}"
        if name not in ALL_COLUMNS:
            known = ", ".join(SEPARATORS.values())
            problem, hint = unknown_column(name)
            hint = "is this JSON? name the file .jsonl" if name[0] in "{[" else hint
            return f"has the {problem} ({hint}); separators are {known}"
        if name in columns[: number - 1]:
            return f"names the column {name} twice"
    if header.cells and _PROMPTS.isdisjoint(columns):
        return "has neither a column prompt nor prompt_file"
    if header.breaks_quotes:
        return _STRAY
    if header.begins_with_blank:
        return f"has a blank after a {SEPARATORS[separator]}: write none"
    return None
