"""Reading the marks of a file that anybody may have made."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from magi2.errors import MediaError
from magi2.files import disk_errors
from magi2.media.marks.aigc import AIGC_KEY, GENERATED, parse_aigc
from magi2.media.marks.boxes import Box, data_boxes, read_boxes
from magi2.media.marks.xmp import TRAINED, XMP_UUID, XmpMarks, parse_xmp
from magi2.media.reading import open_media

TAG_PREFIX = "magi2_"
FIRST_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"uuid")
"""What files of MP4 and QuickTime begin with."""
EBML = b"\x1a\x45\xdf\xa3"
"""What those of Matroska begin with. Others are not opened: to ffmpeg some texts are lists of further files."""


@dataclass(frozen=True)
class Marks:
    """What a file says of itself. `aigc` holds the text of each AIGC entry, wherever it stands, `xmp` each packet's
    content, None for one that is no XML; `tags` are the renderer's own, `magi2_*`.
    """

    aigc: tuple[str, ...]
    xmp: tuple[XmpMarks | None, ...]
    tags: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def entry(self) -> dict[str, str] | None:
        """The fields of the AIGC entry, when there is exactly one and it is one."""
        return parse_aigc(self.aigc[0]) if len(self.aigc) == 1 else None

    @property
    def source_types(self) -> tuple[str, ...]:
        """IPTC's names of the content's source, of all packets."""
        return tuple(name for packet in self.xmp if packet for name in packet.source_types)

    @property
    def problems(self) -> tuple[str, ...]:
        """What is missing or wrong of the marks that every delivered file has, as sentences; none for a good file."""
        found = []
        if len(self.aigc) != 1:
            found.append(f"{len(self.aigc) or 'no'} AIGC entries, must be exactly one")
        elif self.entry is None:
            found.append("the AIGC entry is not JSON with the seven fields")
        elif self.entry["Label"] != GENERATED:
            found.append(f"the AIGC entry's Label is {self.entry['Label'][:20]!r}, must be {GENERATED!r}")
        if self.source_types != (TRAINED,):
            named = ", ".join(name[:100] for name in self.source_types[:3]) or "nothing"
            found.append(f"XMP names {named} as the digital source type, must be {TRAINED}")
        return tuple(found)


def read_marks(path: Path) -> Marks:
    """The marks of an MP4, QuickTime or Matroska file, counted in every place where metadata stands.

    Raises: MediaError for a file that is damaged or of another kind, InfrastructureError when the disk fails.
    """
    with disk_errors(path, MediaError), path.open("rb") as file:
        begin = file.read(8)
        try:
            if begin[4:] in FIRST_BOXES:
                return _of_mp4(file)
            if begin.startswith(EBML):
                return _of_tags(_container_tags(path))
            raise MediaError("neither MP4 nor Matroska")
        except MediaError as error:
            raise MediaError(f"{path}: {error}") from None


def require_marks(path: Path, aigc: str) -> None:
    """Raises MediaError when a file that was just made lacks a mark, or says another `aigc` than it was given."""
    marks = read_marks(path)
    if marks.problems or marks.aigc != (aigc,):
        raise MediaError(f"the clip is not marked: {'; '.join(marks.problems) or 'another AIGC entry was written'}")


def _of_mp4(file: BinaryIO) -> Marks:
    aigc: list[str] = []
    packets: list[XmpMarks | None] = []
    tags: dict[str, str] = {}
    names: dict[tuple[bytes, ...], list[str]] = defaultdict(list)
    for box in read_boxes(file):
        if box.kind == b"keys" and box.path[-1:] == (b"meta",):
            names[box.path] = _key_names(box.content(file))
        elif box.path[-1:] == (b"ilst",):
            for name, value in _values(box, box.content(file), names[box.path[:-1]]):
                if name == AIGC_KEY:
                    aigc.append(value)
                elif name.startswith(TAG_PREFIX):
                    tags.setdefault(name, value)
        elif box.kind == AIGC_KEY.encode() and box.path[-1:] == (b"udta",):
            aigc.append(_text(box.content(file)))
        elif packet := _xmp_content(box, file):
            packets.append(parse_xmp(packet))
    inside = [value for packet in packets if packet for value in packet.aigc]
    return Marks((*aigc, *inside), tuple(packets), tags)


def _xmp_content(box: Box, file: BinaryIO) -> bytes | None:
    if box.kind == b"uuid" and box.end - box.start >= len(XMP_UUID):
        file.seek(box.start)
        return box.content(file)[len(XMP_UUID) :] if file.read(len(XMP_UUID)) == XMP_UUID else None
    return box.content(file) if box.kind == b"XMP_" and box.path[-1:] == (b"udta",) else None


def _key_names(content: bytes) -> list[str]:
    """The names in a list of keys; the first has the number 1."""
    if len(content) < 8:
        raise MediaError("the list of metadata keys is cut")
    return [_text(name) for _, name in data_boxes(content[8:])]


def _values(item: Box, content: bytes, keys: list[str]) -> Iterator[tuple[str, str]]:
    """Name and value of each value that an entry of a metadata list holds."""
    parts = list(data_boxes(content))
    number = struct.unpack(">I", item.kind)[0]
    if item.kind == b"----":
        name = next((_text(part[4:]) for kind, part in parts if kind == b"name"), "")
    elif 1 <= number <= len(keys):
        name = keys[number - 1]
    else:
        name = _text(item.kind)
    for kind, part in parts:
        if kind == b"data":
            yield name, _text(part[8:])


def _container_tags(path: Path) -> list[tuple[str, str]]:
    """The tags of a Matroska file and of its streams, most of their names in capitals."""
    with open_media(path, metadata_errors="replace") as container:
        places = [container.metadata, *(stream.metadata for stream in container.streams)]
        return [(name, value) for place in places for name, value in place.items()]


def _of_tags(tags: list[tuple[str, str]]) -> Marks:
    ours = {name.lower(): value for name, value in tags if name.lower().startswith(TAG_PREFIX)}
    return Marks(tuple(value for name, value in tags if name.upper() == AIGC_KEY), (), ours)


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")
