"""What unpacks a Parquet file, as a program of its own: the library may crash over a damaged one, or fill the memory.

    python parquet_child.py MAX_ROWS MAX_BYTES < file

writes each row as JSON on a line. It ends with status 2 and one sentence on stderr for a file that is refused: what the
file says of itself is checked before anything of it is unpacked, and rows are unpacked some at a time, since a text
that the file holds once may stand in every row.
"""

from __future__ import annotations

import json
import math
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REFUSED_STATUS = 2
_MEMORY_BYTES = 4 * 2**30
"""Besides what the library takes to begin with."""
_AT_ONCE = 64
_MAX_COLUMNS = 1_000
_MAX_FOOTER_BYTES = 2**20


def unpacked(content: bytes, max_rows: int, max_bytes: int) -> Iterator[dict[str, Any]]:
    """The rows as JSON can say them. `max_bytes` holds for all of them as the file says it, and as they are written.

    Raises: ValueError, with the reason, for a file that is none, is damaged, too large, or has columns of other kinds
    than text, numbers, truth values, and lists and objects of these.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(
            pa.BufferReader(content),
            thrift_string_size_limit=_MAX_FOOTER_BYTES,
            thrift_container_size_limit=max(max_rows, _MAX_COLUMNS),
            page_checksum_verification=True,
        )
        _check_size(file.metadata, max_rows, max_bytes)
        _check_columns(file.schema_arrow)
        number, size = 0, 0
        for batch in file.iter_batches(batch_size=_AT_ONCE, use_threads=False):
            for values in batch.to_pylist(maps_as_pydicts="strict"):
                number, size = number + 1, size + len(str(values))
                if size > max_bytes:
                    raise ValueError(f"row {number}: the rows until here have more than {max_bytes} characters")
                yield {name: _plain(value) for name, value in values.items()}
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise ValueError(f"is no Parquet file or is damaged: {' '.join(str(error).split())[:100]}") from None


def _check_size(metadata: Any, max_rows: int, max_bytes: int) -> None:
    if metadata.num_rows > max_rows:
        raise ValueError(f"has {metadata.num_rows} rows, at most {max_rows}")
    if metadata.num_columns > _MAX_COLUMNS:
        raise ValueError(f"has {metadata.num_columns} columns, at most {_MAX_COLUMNS}")
    size = sum(
        metadata.row_group(group).column(column).total_uncompressed_size
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    )
    if size > max_bytes:
        raise ValueError(f"has {size} bytes when unpacked, at most {max_bytes}")


def _check_columns(schema: Any) -> None:
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise ValueError(f"has the column {name!r} twice")
        kind = schema.field(name).type
        if not _is_known(kind):
            raise ValueError(f"the column {name!r} holds {kind}, not text, numbers or lists of these")


def _is_known(kind: Any) -> bool:
    """Whether values of an Arrow type are what JSON can say too."""
    from pyarrow import types

    if types.is_dictionary(kind) or types.is_list(kind) or types.is_large_list(kind):
        return _is_known(kind.value_type)
    if types.is_map(kind):
        return types.is_string(kind.key_type) and _is_known(kind.item_type)
    if types.is_struct(kind):
        return all(_is_known(kind.field(index).type) for index in range(kind.num_fields))
    plain = types.is_string, types.is_large_string, types.is_boolean, types.is_integer, types.is_floating, types.is_null
    return any(is_kind(kind) for is_kind in plain)


def _plain(value: Any) -> Any:
    """A value as JSON would have it: whole numbers of a column with gaps come as floats, and its gaps as NaN.

    An object of Arrow has every field that any row's has: those without a value are left out.
    """
    if isinstance(value, float):
        return None if math.isnan(value) else int(value) if value.is_integer() else value
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items() if each is not None}
    return value


def main(max_rows: int, max_bytes: int) -> int:
    """Unpack what comes in; the exit status."""
    import pyarrow.parquet  # noqa: F401  # before the limit, since what threads it starts depends on the machine

    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + _MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        for row in unpacked(sys.stdin.buffer.read(), max_rows, max_bytes):
            sys.stdout.write(f"{json.dumps(row)}\n")
    except ValueError as error:
        sys.stderr.write(str(error))
        return REFUSED_STATUS
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
