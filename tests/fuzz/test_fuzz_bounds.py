"""The bounds are ones."""

from __future__ import annotations

import resource

import pytest

from tests.fuzz import bounds
from tests.fuzz.bounds import MAX_MORE_BYTES, bounded


def test_more_than_a_gibibyte_is_refused_and_the_limit_goes_with_the_block() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with bounded():
        assert len(bytearray(MAX_MORE_BYTES // 4)) == MAX_MORE_BYTES // 4
        with pytest.raises(MemoryError):
            bytearray(2 * MAX_MORE_BYTES)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_what_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_CPU_S", 0.05)
    with pytest.raises(TimeoutError, match="no end"), bounded():
        while True:
            pass
