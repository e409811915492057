"""Text for people."""

from __future__ import annotations

import pytest

from magi2.report.plain import duration, plain


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0.0 s"), (59.9, "59.9 s"), (60.0, "1 min 00 s"), (3599.6, "1 h 00 min")]
)
def test_times_are_told_in_words(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mred\x1b[0m", "a\ufffd[31mred\ufffd[0m"),
        ("\x00\x07\x9b", "\ufffd\ufffd\ufffd"),
        ("two\r\nlines\tand a tab", "two\nlines\tand a tab"),
        ("half \ud800 a pair", "half ? a pair"),
        ("caf\u00e9 \u732b", "caf\u00e9 \u732b"),
    ],
)
def test_characters_that_control_something_are_replaced(text: str, shown: str) -> None:
    assert plain(text) == shown
