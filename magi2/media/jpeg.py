"""Whether a JPEG file is whole. The format has no checksums, but what follows from its parts must be as long as it is.

A sound decoder needs all of the data of a scan, and nothing of what follows. One that has lost its place, as after a
single wrong bit, mostly needs less or more, and makes grey of what is not there. Pillow's decoder is asked which.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from itertools import pairwise

from PIL import Image

from magi2.media.damage import DamageError

_ALONE = frozenset({0x01, 0xD8, *range(0xD0, 0xD8)})
"""Markers without a length."""
_SCAN, _END, _FILL = 0xDA, 0xD9, 0xFF
_ARITHMETIC = (0xC9, 0xCA)
"""Frames whose data may go on with zeros that are not in the file."""
_AFTER_SCAN = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_RESTART = re.compile(rb"\xff([\xd0-\xd7])")
_FILLER = b"\x5a\xa5" * 64
"""No zeros, which a decoder puts where bits are missing."""
_PADDING = b"\0\xff"
"""What programs put between the data and the end."""
_NEEDED = 2
"""Last bytes of the data without which its last bits are missing."""


def check_jpeg(content: bytes) -> None:
    """Raises DamageError for a file that is cut, or whose data ends earlier or later than its pixels do.

    It is decoded three times; one of a single scan for its lightness alone, which takes a third of the time.
    """
    scans: list[list[int]] = []
    is_arithmetic = False
    for marker, place in _segments(content):
        is_arithmetic |= marker in _ARITHMETIC
        if marker == _SCAN:
            scans.append(list(_parts(content, place)))
    if not scans:
        raise DamageError("it has no pixels")
    if is_arithmetic:
        return
    bounds = [0, *(end for scan in scans for end in scan), len(content)]
    longer, mode = _FILLER.join(content[first:last] for first, last in pairwise(bounds)), "L" if len(scans) == 1 else ""
    if _pixels(longer, mode) != _pixels(content, mode):
        raise DamageError("the data of its pixels ends too early")
    if len(scans) == 1 and _is_complete(content[: scans[0][-1]].rstrip(_PADDING)[:-_NEEDED]):
        raise DamageError("the data of its pixels ends too late")


def _segments(content: bytes) -> Iterator[tuple[int, int]]:
    """Each marker that has a length, and where what it announces ends, up to the marker of the end."""
    place = 2
    while True:
        head = content[place : place + 4]
        if len(head) > 1 and head[0] != _FILL:
            raise DamageError(f"there is no marker at byte {place}")
        marker = head[1] if len(head) > 1 else _FILL
        if marker == _END:
            return
        if len(head) < 4:
            raise DamageError("it is cut off")
        if marker == _FILL or marker in _ALONE:
            place += 1 if marker == _FILL else 2
            continue
        place += 2 + int.from_bytes(head[2:], "big")
        if place > len(content):
            raise DamageError("it is cut off")
        yield marker, place
        if marker == _SCAN:
            place = _end_of_scan(content, place)


def _end_of_scan(content: bytes, place: int) -> int:
    found = _AFTER_SCAN.search(content, place)
    if found is None:
        raise DamageError("it is cut off")
    return found.start()


def _parts(content: bytes, place: int) -> Iterator[int]:
    """Where the parts of a scan's data end. Between them markers count from 0 to 7 and again."""
    end = _end_of_scan(content, place)
    for number, found in enumerate(_RESTART.finditer(content, place, end)):
        if found[1][0] - 0xD0 != number % 8:
            raise DamageError("a part of its pixels is lost")
        yield found.start()
    yield end


def _is_complete(content: bytes) -> bool:
    """Whether a decoder has all that it needs."""
    try:
        _pixels(content, "L")
    except OSError:
        return False
    return True


def _pixels(content: bytes, mode: str) -> bytes:
    """The pixels in a mode, where the decoder has it, or as they are."""
    with Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
        image.draft(mode, image.size)
        return image.tobytes()
