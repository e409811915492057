"""From bytes to text, where there is one way to read them.

A byte-order mark tells the encoding, as Excel and Notepad write it; without one a text is UTF-8 or refused. The older
encodings of languages read nearly every file, each as other words, so none of them is guessed.
"""

from __future__ import annotations

import codecs
import json

SAVE_AS_UTF8 = "save it as UTF-8, which Excel calls CSV UTF-8"
_MARK = "\ufeff"
_ENCODINGS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
    (_MARK.encode("gb18030"), "GB18030"),
)
_START = 1024


def decode(content: bytes, *, in_rows: bool = False) -> str:
    """The text of a file, without the byte-order marks that it begins with or that joining files left inside.

    Where the text is `in_rows`, bytes that are no UTF-8 become lone surrogates, so that they cost their row alone,
    unless so much is none that it is no UTF-8 as a whole.
    Raises: ValueError that says in which line it is not what it should be, and quotes nothing of it.
    """
    encoding = next((name for mark, name in _ENCODINGS if content.startswith(mark)), "UTF-8")
    start = content[:_START]
    if encoding == "UTF-8" and 1 / 4 < start.count(0) / max(1, len(start)) < 9 / 10:
        encoding = json.detect_encoding(content)  # UTF-16 or UTF-32 without a mark
    try:
        return content.decode(encoding).replace(_MARK, "")
    except UnicodeDecodeError as error:
        if in_rows and encoding == "UTF-8" and (text := _mended(content)):
            return text
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"byte {error.start} is no {encoding.upper()}, in line {line}") from None


def _mended(content: bytes) -> str | None:
    """UTF-8 with damage here and there: less than there are other characters that only UTF-8 writes so."""
    text = content.decode(errors="surrogateescape").replace(_MARK, "")
    damaged = len(text) - len(text.encode(errors="ignore").decode())
    foreign = len(text) - len(text.encode("ascii", errors="ignore"))
    return text if foreign > 2 * damaged else None
