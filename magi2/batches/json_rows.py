"""Rows of JSON: an array, one value a line, or values over several lines, whatever the file is called.

Each row is read alone: what is no JSON costs its row, and reading goes on where the next row begins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from magi2.batches.rows import Row, unknown_column
from magi2.config.row_settings import keys_of_profiles
from magi2.inputs.limits import MAX_JSON_DEPTH, MAX_ROW_CHARS, MAX_ROWS, MAX_TAGS, MAX_VARIANTS
from magi2.inputs.text import RepeatedKeyError, load_json, quoted, shown

_BLANKS = re.compile(r"[ \t\n]*")
_REST_OF_LINE = re.compile(r"[ \t]*(?:\n|\Z)")
_SIGN = re.compile(r"[ \t\n]*(?:,|(?=\])|\Z)")
_NEXT_ROW = re.compile(r'\n(?=[ \t]*\{|"(?:[^"\\\n]|\\.)*"[ \t]*(?:\n|\Z))')
"""A line that begins with an object, or is a string without indentation: what is indented belongs to a row above."""
_WINDOWS = (2**12, 2**16, MAX_ROW_CHARS)
"""How much of the text is looked at for the end of a value, until it is found: a copy of the rest would cost more."""
_LONGEST_WORD = 16
"""As long as what JSON spells out, `-Infinity` or an escaped surrogate pair, and more."""
_SCANNER = json.JSONDecoder(strict=False, parse_int=len, parse_float=len, parse_constant=len)
"""Finds the end of a value, without judging what it holds."""


def json_rows(text: str) -> Iterator[Row]:
    """The rows of a text. Raises: ValueError when nothing of it is JSON, and for an array that is cut off."""
    faults: list[Row] | None = []
    for row, is_json in _Reader(text).rows():
        if faults is None:
            yield row
        elif is_json:
            yield from (*faults, row)
            faults = None
        else:
            faults.append(row)
            if len(faults) > MAX_ROWS:
                break
    if faults:
        raise ValueError(f"line {faults[0].number}: {faults[0].problem}")


class _Reader:
    """Goes through a text from row to row; `at` is in line `line`."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.line = text, 0, 1
        self._skip_blanks()
        self.is_array = text.startswith("[", self.at)

    def rows(self) -> Iterator[tuple[Row, bool]]:
        """Each row, and whether it is JSON."""
        first = self.line
        if self.is_array:
            self._move(self.at + 1)
        fault = None
        while self._skip_blanks() and not (self.is_array and self.text.startswith("]", self.at)):
            row, is_json = self._row()
            fault = fault or (None if is_json else f"line {row.number}: {row.problem}")
            yield row, is_json
        if self.is_array:
            if self.at == len(self.text):
                raise ValueError(fault or f"line {first}: the array has no end, the file is cut off")
            self._move(self.at + 1)
            if self._skip_blanks():
                raise ValueError(f"line {self.line}: text follows the array; one file holds one")

    def _row(self) -> tuple[Row, bool]:
        start, line = self.at, self.line
        try:
            end = self._end_of_value()
        except json.JSONDecodeError as error:
            return self._fault(start, line, self._reason(error, start, line))
        except RecursionError:
            return self._fault(start, line, f"nested more than {MAX_JSON_DEPTH} deep")
        self._move(end)
        if not self._ends_row():
            return self._fault(start, line, "text follows the value, or a comma is missing after it")
        try:
            return row_of(line, load_json(self.text[start:end])), True
        except RepeatedKeyError as error:
            return Row(line, {}, f"gives two values for {quoted(error.key)}"), True
        except json.JSONDecodeError as error:
            return Row(line, {}, f"not JSON: {self._reason(error, start, line)}"), True
        except ValueError as error:
            return Row(line, {}, f"not JSON: {error}"), True

    def _fault(self, start: int, line: int, reason: str) -> tuple[Row, bool]:
        """The row that begins at `start` in `line` as no JSON; reading goes on where the next one begins."""
        self.at, self.line = start, line
        if self.text[start] in "{[":
            following = _NEXT_ROW.search(self.text, start)
            self._move(following.end() if following else len(self.text))
        else:
            self._move(self.text.find("\n", start) + 1 or len(self.text))
        last = self.line - 1 if self.at < len(self.text) else self.line
        passed = f"; lines {line} to {last} are passed over" if last > line else ""
        return Row(line, {}, f"not JSON: {reason}{passed}"), False

    def _end_of_value(self) -> int:
        for size in _WINDOWS:
            window = self.text[self.at : self.at + size]
            try:
                end = _SCANNER.raw_decode(window)[1]
            except json.JSONDecodeError as error:
                if size == _WINDOWS[-1] or self.at + size >= len(self.text) or not _may_be_cut(error, size):
                    raise
            else:
                if end < len(window) or self.at + end == len(self.text):
                    break
        return self.at + end

    def _ends_row(self) -> bool:
        if not self.is_array:
            return _REST_OF_LINE.match(self.text, self.at) is not None
        sign = _SIGN.match(self.text, self.at)
        if sign and sign[0].endswith(","):
            self._move(sign.end())
        return sign is not None

    def _skip_blanks(self) -> bool:
        """Whether anything follows them."""
        blanks = _BLANKS.match(self.text, self.at)
        self._move(blanks.end() if blanks else self.at)
        return self.at < len(self.text)

    def _move(self, at: int) -> None:
        self.line += self.text.count("\n", self.at, at)
        self.at = at

    def _reason(self, error: json.JSONDecodeError, start: int, line: int) -> str:
        at = start + error.pos
        line += self.text.count("\n", start, at)
        return f"{error.msg}, line {line} column {at - self.text.rfind(chr(10), 0, at)}"


def _may_be_cut(error: json.JSONDecodeError, size: int) -> bool:
    """Whether a longer window may read well: the fault is where this one ends, or in a string that goes on there."""
    return error.pos > size - _LONGEST_WORD or error.msg.startswith("Unterminated string")


def row_of(line: int, value: object) -> Row:
    """A parsed value as the row of a line."""
    if isinstance(value, str):
        return Row(line, {"prompt": value})
    if not isinstance(value, Mapping):
        return Row(line, {}, f"is a {type(value).__name__}, not an object or a string")
    for key, member in value.items():
        if problem := _nesting(key, member):
            return Row(line, {}, problem)
    return Row(line, value)


def _nesting(key: str, member: Any) -> str | None:
    """What no column takes is let go at once: a file of it would fill the memory."""
    if not isinstance(member, list | dict):
        return None
    if key in keys_of_profiles() and isinstance(member, dict):
        return next(filter(None, (_nesting_in(key, name, inner) for name, inner in member.items())), None)
    if key == "seeds":
        return None if len(member) <= MAX_VARIANTS else f"seeds has {len(member)} seeds, at most {MAX_VARIANTS}"
    if len(member) > MAX_TAGS:
        return f"{shown(key)} has {len(member)} tags or images, at most {MAX_TAGS}"
    if any(isinstance(item, list | dict) for item in (member.values() if isinstance(member, dict) else member)):
        return f"{shown(key)} holds lists or objects inside others"
    return None


def _nesting_in(section: str, name: str, member: Any) -> str | None:
    """The same of a member of a profile's section, which holds nothing that a profile does not."""
    key = f"{section}.{name}"
    if key not in keys_of_profiles():
        message, hint = unknown_column(key)
        return f"{message} ({hint})"
    return _nesting(key, member)
