"""Rows of Parquet files, typed as they are; needs the extra `parquet`. A process of its own unpacks them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec

from magi2.batches import parquet_child
from magi2.batches.json_rows import row_of
from magi2.batches.rows import Row
from magi2.errors import ConfigError
from magi2.inputs.limits import MAX_BATCH_BYTES, MAX_ROW_CHARS, MAX_ROWS
from magi2.inputs.text import shown

_TIMEOUT_S = 600.0


def parquet_rows(content: bytes) -> Iterator[Row]:
    """The rows of a file, counted from 1.

    Raises: ValueError for a file that is refused, as `unpacked` says, or over which the library crashes; ConfigError
    without the extra.
    """
    if find_spec("pyarrow") is None:
        raise ConfigError("Parquet files need pyarrow", hint="pip install 'magi2[parquet]'")
    for number, line in enumerate(_lines(content), start=1):
        row = row_of(number, json.loads(line))
        if len(line) > MAX_ROW_CHARS:
            row = row.refused(f"has more than {MAX_ROW_CHARS} characters")
        yield Row(number, row.values, row.problem, f"row {number}")


def _lines(content: bytes) -> list[bytes]:
    program = [sys.executable, "-I", parquet_child.__file__, str(MAX_ROWS), str(MAX_BATCH_BYTES)]
    try:
        done = subprocess.run(program, input=content, capture_output=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ValueError(f"is not unpacked in {_TIMEOUT_S:.0f} s") from None
    if done.returncode == parquet_child.REFUSED_STATUS:
        raise ValueError(shown(done.stderr.decode(errors="replace").strip()))
    if done.returncode != 0:
        raise ValueError("is damaged: what unpacks it ended halfway")
    return done.stdout.splitlines()
