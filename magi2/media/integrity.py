"""Whether a picture file is whole: what its format says of its own bytes is held against them.

Decoders are kind to broken files. They make grey or black of what is lost, skip checksums and end before the last of
them. Every function raises DamageError, which quotes nothing of the file.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

from magi2.media.damage import DamageError
from magi2.media.jpeg import check_jpeg

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""Of each pass over an interlaced picture: first column and row, then the steps in both."""
_MAX_TEXT_BYTES = 16 * 2**20
_PIECE = 2**20


def check_integrity(content: bytes, file_format: str) -> None:
    """Raises DamageError when a picture file of a format, as Pillow names it, is damaged or cut as far as one can tell.

    JPEG is decoded four times for it; other formats once, at most.
    """
    check = _CHECKS.get(file_format)
    if check:
        check(content)


def _png(content: bytes) -> None:
    """Every chunk's CRC, and every compressed stream's own checksum and end; the pixels are as many as promised."""
    chunks = list(_png_chunks(content))
    if chunks[0][0] != b"IHDR" or len(chunks[0][1]) != 13:
        raise DamageError("it does not begin with a header")
    pixels = (data for kind, data in chunks if kind == b"IDAT")
    _check_stream(pixels, "pixels", exactly=_png_size(bytes(chunks[0][1])))
    for kind, data in chunks:
        if (packed := _png_packed(kind, bytes(data) if kind in _PNG_PACKED else b"")) is not None:
            _check_stream([packed], f"chunk {kind.decode()}", at_most=_MAX_TEXT_BYTES)


def _png_chunks(content: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Kind and data of each chunk up to the last."""
    view, place = memoryview(content), len(_PNG_SIGNATURE)
    while True:
        length, kind = int.from_bytes(view[place : place + 4], "big"), content[place + 4 : place + 8]
        end = place + 12 + length
        if len(kind) < 4 or end > len(content):
            raise DamageError("it is cut off")
        if not kind.isalpha() or zlib.crc32(view[place + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
            raise DamageError(f"the checksum of the chunk at byte {place} is wrong")
        yield kind, view[place + 8 : end - 4]
        place = end
        if kind == b"IEND":
            break
    if place != len(content):
        raise DamageError(f"{len(content) - place} bytes follow its end")


def _png_size(header: bytes) -> int:
    """Bytes of the pixels before compression: a filter byte and the packed pixels of each line of each pass."""
    width, height = int.from_bytes(header[:4], "big"), int.from_bytes(header[4:8], "big")
    depth, colours, is_interlaced = header[8], header[9], header[12]
    bits = depth * _PNG_CHANNELS.get(colours, 0)
    passes = [(0, 0, 1, 1)] if not is_interlaced else _ADAM7
    total = 0
    for left, top, across, down in passes:
        columns, lines = -(-max(0, width - left) // across), -(-max(0, height - top) // down)
        total += lines * (1 + -(-columns * bits // 8)) if columns else 0
    return total


_PNG_PACKED = (b"iCCP", b"zTXt", b"iTXt")


def _png_packed(kind: bytes, data: bytes) -> bytes | None:
    """The compressed part of a chunk beside the pixels, None where there is none."""
    if kind not in _PNG_PACKED:
        return None
    _, _, rest = data.partition(b"\0")
    if kind != b"iTXt":
        return rest[1:]
    return rest[2:].split(b"\0", 2)[-1] if rest[:1] == b"\1" else None


def _check_stream(parts: Iterator[memoryview] | list[bytes], what: str, *, exactly: int = 0, at_most: int = 0) -> None:
    """Unpack a zlib stream, no more of it than there may be, to its end and checksum."""
    limit, size, stream = exactly or at_most, 0, zlib.decompressobj()
    try:
        for part in parts:
            rest: bytes | memoryview = part
            while rest and size <= limit and not stream.eof:
                size += len(stream.decompress(rest, _PIECE))
                rest = stream.unconsumed_tail
    except zlib.error:
        raise DamageError(f"its {what} cannot be unpacked, or have another checksum") from None
    if not stream.eof or size > limit or (exactly and size != exactly):
        raise DamageError(f"its {what} are not as many as it promises")


def _webp(content: bytes) -> None:
    """The sizes of the file and of its chunks."""
    if len(content) != 8 + int.from_bytes(content[4:8], "little"):
        raise DamageError("it has not the size that it says it has")
    place = 12
    while place < len(content):
        size = int.from_bytes(content[place + 4 : place + 8], "little")
        place += 8 + size + size % 2
    if place != len(content):
        raise DamageError("it is cut off")


def _gif(content: bytes) -> None:
    """Its blocks lead to its end."""
    place = 13 + _gif_table(content, 10)
    while (kind := content[place : place + 1]) != b";":
        if kind == b"!":
            place += 2
        elif kind == b",":
            place += 11 + _gif_table(content, place + 9)
        else:
            raise DamageError("it is cut off" if not kind else f"there is no block at byte {place}")
        while place < len(content) and content[place]:
            place += 1 + content[place]
        place += 1


def _gif_table(content: bytes, place: int) -> int:
    """Bytes of the colours that a flag announces."""
    flags = int.from_bytes(content[place : place + 1], "little")
    return 3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0


def _bmp(content: bytes) -> None:
    """The size, which some programs leave at zero."""
    if len(content) < int.from_bytes(content[2:6], "little"):
        raise DamageError("it is cut off")


_CHECKS: dict[str, Callable[[bytes], None]] = {
    "PNG": _png,
    "JPEG": check_jpeg,
    "MPO": check_jpeg,
    "WEBP": _webp,
    "GIF": _gif,
    "BMP": _bmp,
}
