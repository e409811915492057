"""What errors say of those that they stand for."""

from __future__ import annotations

import pytest

from magi2.errors import in_one_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("one  line\n", "one line"),
        ("at 18:24:\ndef kernel(\n    x,\n):\n    ^\narange's range must be a power of 2", None),
        ("at 18:24:\r\n" + "source\r\n" * 500 + "\r\n  arange's range must be a power of 2 \r\n", None),
    ],
)
def test_messages_of_compilers_lose_their_sources(text: str, line: str | None) -> None:
    wanted = "at 18:24: … arange's range must be a power of 2" if line is None else line
    assert in_one_line(ValueError(text)) == wanted
