"""What a request for a part of a file means, and one for a file that the browser may have already (RFC 9110)."""

from __future__ import annotations

import re
from collections.abc import Mapping

_RANGE = re.compile(r"\s*bytes\s*=\s*([0-9]{0,400})\s*-\s*([0-9]{0,400})\s*", re.IGNORECASE)
_TAG = re.compile(r'(?:W/)?("[^"]*")')


class UnsatisfiableRangeError(Exception):
    """No byte of the file lies in the range."""


def wanted_part(headers: Mapping[str, str], size: int, tag: str) -> tuple[int, int] | None:
    """First byte and end of the part that is asked for; None for the whole.

    The whole is the answer to what is no range, to several, and to one of another version of the file (If-Range).
    Raises: UnsatisfiableRangeError.
    """
    found = _RANGE.fullmatch(headers.get("range", ""))
    if found is None or headers.get("if-range", tag) != tag:
        return None
    first, last = found.groups()
    if not first and not last:
        return None
    if not first:
        start, stop = max(size - int(last), 0), size
    else:
        start, stop = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < start:
            return None
    if start >= size:
        raise UnsatisfiableRangeError
    return start, stop


def is_known(headers: Mapping[str, str], tag: str) -> bool:
    """Whether the browser has this version of the file (If-None-Match)."""
    known = headers.get("if-none-match", "")
    return known.strip() == "*" or tag in _TAG.findall(known)
