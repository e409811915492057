"""What the headers and indexes of weight files say, without reading a weight; torch-free."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

_MAX_HEADER_BYTES = 100_000_000


def json_object(path: Path) -> dict[str, Any] | None:
    """The object of a JSON file; None when there is none."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def header_of(path: Path) -> dict[str, Any]:
    """The header of a safetensors file as it is now; empty when it has none."""
    try:
        state = path.stat()
    except OSError:
        return {}
    return _header(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=256)
def _header(path: Path, modified_ns: int, size: int) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            content = json.loads(stream.read(length)) if 0 < length < min(size, _MAX_HEADER_BYTES) else None
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def is_whole(path: Path) -> bool:
    """Whether a safetensors file has a header, and is as long as that says."""
    try:
        with path.open("rb") as stream:
            start, size = 8 + int.from_bytes(stream.read(8), "little"), path.stat().st_size
        ends = [tensor["data_offsets"][1] for name, tensor in header_of(path).items() if name != "__metadata__"]
        return bool(ends) and start + max(ends) == size
    except (OSError, TypeError, LookupError, OverflowError):
        return False
