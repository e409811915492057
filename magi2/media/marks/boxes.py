"""The boxes of an MP4 file, read without trust in any size that the file states."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from magi2.errors import MediaError

MAX_BOXES = 10_000
"""Of one file, among those that are looked at: clips have some dozens."""
MAX_METADATA_BYTES = 4 * 2**20
"""Of one box that is read whole."""
CONTAINERS = (b"moov", b"trak", b"udta", b"meta", b"ilst")
"""Boxes that lead to metadata."""
_DEEPEST = 8


@dataclass(frozen=True)
class Box:
    """One box: its type, the types of those around it, outermost first, and where its content lies in the file."""

    kind: bytes
    path: tuple[bytes, ...]
    start: int
    end: int

    def content(self, file: BinaryIO) -> bytes:
        """The box's content. Raises: MediaError when it is larger than metadata is, or the file ends before it."""
        size = self.end - self.start
        if size > MAX_METADATA_BYTES:
            raise MediaError(f"box {shown_kind(self.kind)}: {size} bytes, metadata has at most {MAX_METADATA_BYTES}")
        return _read(file, self.start, size)


def read_boxes(file: BinaryIO) -> Iterator[Box]:
    """The file's boxes in order, those inside `CONTAINERS` after each of these.

    Raises: MediaError for a box that does not fit into the one around it or into the file, for too many, or too deep.
    """
    boxes = _inside(file, (), 0, file.seek(0, os.SEEK_END))
    for count, box in enumerate(boxes, start=1):
        if count > MAX_BOXES:
            raise MediaError(f"more than {MAX_BOXES} boxes of metadata")
        yield box


def data_boxes(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Type and content of the boxes that fill a piece of metadata. Raises: MediaError as `read_boxes` does."""
    place = 0
    while place < len(content):
        if len(content) - place < 8:
            raise MediaError("a box of metadata is cut")
        size, kind = struct.unpack_from(">I4s", content, place)
        if not 8 <= size <= len(content) - place:
            raise MediaError(f"box {shown_kind(kind)}: states {size} bytes, there are {len(content) - place}")
        yield kind, content[place + 8 : place + size]
        place += size


def shown_kind(kind: bytes) -> str:
    """A box's type for people."""
    return repr(kind.decode("latin-1"))


def _inside(file: BinaryIO, path: tuple[bytes, ...], start: int, end: int) -> Iterator[Box]:
    if len(path) > _DEEPEST:
        raise MediaError(f"boxes of metadata lie more than {_DEEPEST} deep")
    place = start
    while place < end:
        if path and end - place < 8:
            return  # QuickTime ends lists of user data by four zeros
        box = _box(file, path, place, end)
        yield box
        if box.kind in CONTAINERS:
            yield from _inside(file, (*path, box.kind), box.start + _version_bytes(file, box), box.end)
        place = box.end


def _box(file: BinaryIO, path: tuple[bytes, ...], place: int, end: int) -> Box:
    size, kind = struct.unpack(">I4s", _read(file, place, 8))
    header = 8
    if size == 1:
        (size,), header = struct.unpack(">Q", _read(file, place + 8, 8)), 16
    elif size == 0 and not path:
        size = end - place  # the last one may go on to the end
    if not header <= size <= end - place:
        raise MediaError(f"box {shown_kind(kind)} at {place}: states {size} bytes, there are {end - place}")
    return Box(kind, path, place + header, place + size)


def _version_bytes(file: BinaryIO, box: Box) -> int:
    """Bytes before the first box inside `meta`: four in MP4, none in QuickTime."""
    if box.kind != b"meta" or box.end - box.start < 8:
        return 0
    return 0 if _read(file, box.start + 4, 4) == b"hdlr" else 4


def _read(file: BinaryIO, place: int, size: int) -> bytes:
    file.seek(place)
    content = file.read(size)
    if len(content) != size:
        raise MediaError(f"the file ends at {place + len(content)}, where {size - len(content)} more bytes should be")
    return content
