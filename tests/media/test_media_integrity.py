"""Picture files that are damaged or cut are refused as far as their format tells, and sound ones never."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageCms, PngImagePlugin

from magi2.errors import ImageError
from magi2.media.image import load_picture
from tests.media.picture_samples import noisy, png_chunk, saved

WHITE = (255, 255, 255)
SHAPES: dict[str, dict[str, Any]] = {
    "AVIF": {},
    "BMP": {},
    "GIF": {},
    "JPEG": {},
    "JPEG progressive": {"progressive": True},
    "JPEG with restarts": {"restart_marker_rows": 1},
    "JPEG of full colour": {"subsampling": 0, "quality": 95},
    "PNG": {},
    "PPM": {},
    "TIFF": {},
    "TIFF packed": {"compression": "tiff_lzw"},
    "WEBP": {},
    "WEBP lossless": {"lossless": True},
}


def refusal(content: bytes) -> str:
    with pytest.raises(ImageError) as caught:
        load_picture(content, background=WHITE)
    return str(caught.value)


@pytest.mark.parametrize("shape", SHAPES)
def test_picture_cut_anywhere_is_refused_and_a_whole_one_taken(shape: str) -> None:
    content = saved(noisy(), shape.split()[0], **SHAPES[shape])
    load_picture(content, background=WHITE)
    for kept in (0, 1, 20, len(content) // 3, len(content) * 9 // 10, len(content) - 10, len(content) - 2):
        refusal(content[:kept])


@pytest.mark.parametrize("mode", ["RGB", "P", "L", "1", "RGBA"])
def test_every_flipped_bit_of_a_png_is_refused(mode: str) -> None:
    """Before, one of ten gave a reference of which up to half was black."""
    content = saved(noisy(24, 16).convert(mode), "PNG")
    for place in range(8, len(content)):
        refusal(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])


def test_png_that_is_interlaced_or_holds_text_and_profiles_is_taken() -> None:
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", "x" * 3000, zip=True)
    text.add_itxt("Title", "y" * 3000, zip=True)
    text.add_itxt("Author", "somebody")
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    load_picture(saved(noisy(), "PNG", pnginfo=text, icc_profile=profile), background=WHITE)
    load_picture(interlaced(b"".join(passes(13, 9))), background=WHITE)


def passes(width: int, height: int) -> list[bytes]:
    """The lines of each pass over an interlaced grey picture, a filter byte before each."""
    lines = []
    for left, top, across, down in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4)):
        lines += [b"\0" + bytes(len(range(left, width, across))) for _ in range(top, height, down)]
    lines += [b"\0" + bytes(len(range(1, width, 2))) for _ in range(0, height, 2)]
    return [*lines, *(b"\0" + bytes(width) for _ in range(1, height, 2))]


def interlaced(lines: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", 13, 9, 8, 0, 0, 0, 1)
    chunks = (png_chunk(b"IHDR", header), png_chunk(b"IDAT", zlib.compress(lines)), png_chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def with_other_data(content: bytes, change: Any) -> bytes:
    """A PNG whose compressed pixels are other ones, with the checksum of the chunk right."""
    start = content.index(b"IDAT")
    length = struct.unpack(">I", content[start - 4 : start])[0]
    data = change(content[start + 4 : start + 4 + length])
    return content[: start - 4] + png_chunk(b"IDAT", data) + content[start + 8 + length :]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: data[:-4],
        lambda data: zlib.compress(zlib.decompress(data)[:-1]),
        lambda data: zlib.compress(zlib.decompress(data) + b"\0" * 9),
        lambda data: zlib.compress(bytes(50_000_000)),
    ],
    ids=["another checksum", "no checksum", "too few pixels", "too many pixels", "far too many"],
)
def test_png_whose_stream_is_not_what_its_chunks_say_is_refused(change: Any) -> None:
    content = saved(noisy(8, 8), "PNG")
    assert "damaged" in refusal(with_other_data(content, change))


def test_png_with_a_damaged_profile_inside_a_sound_chunk_is_refused() -> None:
    content = saved(noisy(8, 8), "PNG")
    packed = bytearray(zlib.compress(b"a profile" * 50))
    packed[-1] ^= 1
    broken = content[:33] + png_chunk(b"iCCP", b"name\0\0" + bytes(packed)) + content[33:]
    assert "chunk iCCP" in refusal(broken)


def test_what_follows_the_end_of_a_png_is_refused_and_counted() -> None:
    assert "17 bytes follow its end" in refusal(saved(noisy(), "PNG") + b"left by an editor")


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_rows": 1}, {"quality": 95}])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_sound_jpeg_of_any_size_is_taken(options: dict[str, Any], mode: str) -> None:
    """Also where its last blocks lie beyond its border, or are of one colour."""
    dice = random.Random(repr((options, mode)))
    for _ in range(12):
        size = dice.randrange(1, 40), dice.randrange(1, 40)
        for image in (Image.new("RGB", size, dice.choice(["white", "red", "gray"])), noisy(*size)):
            load_picture(saved(image.convert(mode), "JPEG", **options), background=WHITE)


def test_jpeg_whose_data_was_lost_or_added_is_refused() -> None:
    content = saved(noisy(), "JPEG", quality=90)
    start, end = content.index(b"\xff\xda") + 14, content.rindex(b"\xff\xd9")
    lost = content[: end - 200] + content[end:]
    added = content[:end] + content[start : start + 200] + content[end:]
    assert "ends too early" in refusal(lost)
    assert "ends too late" in refusal(added)
    assert "cut off" in refusal(content[:end])


def test_jpeg_that_lost_a_part_between_restart_markers_is_refused() -> None:
    content = saved(noisy(), "JPEG", restart_marker_rows=1)
    first, second = content.index(b"\xff\xd1"), content.index(b"\xff\xd2")
    assert "a part of its pixels is lost" in refusal(content[:first] + content[second:])


def test_jpeg_with_a_second_picture_or_a_trailer_is_taken() -> None:
    """As phones write them: a map of depth, or a short film."""
    both = saved(noisy(), "MPO", save_all=True, append_images=[noisy(seed=1)])
    assert load_picture(both, background=WHITE).notes == ()
    load_picture(saved(noisy(), "JPEG") + b"a film", background=WHITE)


def test_webp_of_another_size_than_it_says_is_refused() -> None:
    assert "not the size" in refusal(saved(noisy(), "WEBP") + b"xx")


def test_reason_quotes_nothing_of_the_file(tmp_path: Path) -> None:
    content = saved(noisy(8, 8), "PNG")
    path = tmp_path / "a.png"
    path.write_bytes(content[:33] + b"\0\0\0\6SECRETsecret" + bytes(4) + content[33:])
    with pytest.raises(ImageError, match=r"a\.png: not a readable image: damaged") as caught:
        load_picture(path, background=WHITE)
    assert "secret" not in str(caught.value).lower()
