"""Bytes are read as text where there is one way to, and refused in one sentence where there are several."""

from __future__ import annotations

from pathlib import Path

import pytest

from magi2.errors import InputError
from magi2.inputs.encoding import decode
from magi2.inputs.files import InputRoots

TEXT = "prompt;seed\nEin Würfel, 骰子 🎲;1\n"


@pytest.mark.parametrize(
    "content",
    [
        *(TEXT.encode(name) for name in ("utf-8", "utf-8-sig", "utf-16", "utf-32")),
        *(("\ufeff" + TEXT).encode(name) for name in ("utf-16-be", "utf-16-le", "utf-32-be", "utf-32-le", "gb18030")),
        *(TEXT.encode(name) for name in ("utf-16-be", "utf-16-le", "utf-32-be", "utf-32-le")),
    ],
    ids=lambda content: content[:6].hex(),
)
def test_unicode_is_read_in_every_encoding_that_can_be_told(content: bytes) -> None:
    assert decode(content) == TEXT


def test_marks_that_joining_files_leaves_are_no_text() -> None:
    assert decode("one\n".encode("utf-8-sig") + "two\n".encode("utf-8-sig")) == "one\ntwo\n"


@pytest.mark.parametrize(
    "content",
    [
        "prompt\nEin Würfel\n".encode("cp1252"),
        "prompt\n骰子\n".encode("gb18030"),
        "prompt\n夜の海\n".encode("shift-jis"),
        "prompt\nпрогулка\n".encode("cp1251"),
        b"prompt\n\xed\xa0\x80\n",
    ],
)
@pytest.mark.parametrize("in_rows", [False, True])
def test_what_many_encodings_could_be_is_refused_with_the_line_and_the_remedy(
    content: bytes, in_rows: bool, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(
        InputError, match=r"^a.csv: unreadable: byte \d+ is no UTF-8, in line 2 \(save it as UTF-8"
    ) as said:
        InputRoots((tmp_path,)).read_text(tmp_path / "a.csv", "a.csv", in_rows=in_rows)
    assert "\n" not in str(said.value)


def test_a_damaged_line_of_utf8_costs_itself_where_text_is_in_rows() -> None:
    content = "prompt\n骰子\n".encode() + b"caf\xe9\nmore\n"
    assert decode(content, in_rows=True).split("\n") == ["prompt", "骰子", "caf\udce9", "more", ""]
    with pytest.raises(ValueError, match="in line 3"):
        decode(content)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"\xff\xfeA\x00\x00\xd8", b"\xff\xfe\x00\x00\x00\x00\x11\x00"])
def test_a_mark_that_lies_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="is no UTF-"):
        decode(content, in_rows=True)
