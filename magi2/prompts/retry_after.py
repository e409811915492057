"""How long an endpoint asks to be left alone before the next attempt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 8.0


def pause_before(attempt: int, headers: Mapping[str, str]) -> float:
    """Seconds until attempt number `attempt` (the second is 2), by an answer's headers in lower case.

    What the endpoint asks for, or else pauses that double. Infinite when it asks for more than a number can hold.
    """
    asked = [_seconds(headers.get("retry-after", ""))]
    asked.append(_seconds(headers.get("retry-after-ms", "")) / 1000)
    given = [seconds for seconds in asked if not math.isnan(seconds)]
    if given:
        return max(0.0, *given)
    return min(_FIRST_PAUSE_S * 2.0 ** min(attempt - 2, 10), _LONGEST_PAUSE_S)


def _seconds(value: str) -> float:
    """A number, or an HTTP date from now; NaN for anything else."""
    try:
        return float(value)
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return math.nan
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
