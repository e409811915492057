"""Pictures are read as viewers show them, what is odd about them is noted, and other files are called by their kind."""

from __future__ import annotations

import io
import re
import struct
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageDraw

from magi2.errors import ImageError
from magi2.media import image as image_module
from magi2.media.image import FORMATS, load_image, load_picture, load_reference
from tests.media.picture_samples import noisy, png_chunk, saved

RED, GREEN, WHITE = (255, 0, 0), (0, 255, 0), (255, 255, 255)


def half_hidden() -> Image.Image:
    """Red on the left, wholly transparent green on the right."""
    image = Image.new("RGBA", (64, 32), (*RED, 255))
    image.paste((*GREEN, 0), (32, 0, 64, 32))
    return image


def hidden_in(mode: str) -> bytes:
    """The picture of `half_hidden` in a way that PNG files have of hiding pixels."""
    image = half_hidden()
    if mode == "RGBA":
        return saved(image, "PNG")
    if mode == "LA":
        return saved(image.convert("LA"), "PNG")
    if mode == "P":
        return saved(image.quantize(), "PNG")
    if mode == "P by index":
        return saved(
            image.convert("RGB").quantize(2), "PNG", transparency=image.convert("RGB").quantize(2).getpixel((63, 0))
        )
    if mode == "RGB by colour":
        return saved(image.convert("RGB"), "PNG", transparency=GREEN)
    if mode == "L by level":
        grey = image.convert("RGB").convert("L")
        return saved(grey, "PNG", transparency=grey.getpixel((63, 0)))
    deep = np.full((32, 64), 20_000, np.uint16)
    deep[:, 32:] = 40_000
    return saved(Image.fromarray(deep), "PNG", transparency=40_000)


MODES = ["RGBA", "LA", "P", "P by index", "RGB by colour", "L by level", "16 bit by level"]


@pytest.mark.parametrize("background", [WHITE, (10, 20, 200)])
@pytest.mark.parametrize("mode", MODES)
def test_transparent_parts_show_the_background_and_no_hidden_colour(mode: str, background: Any) -> None:
    picture = load_picture(hidden_in(mode), background=background)
    assert picture.pixels.mode == "RGB"
    assert picture.pixels.getpixel((63, 0)) == background
    assert picture.pixels.getpixel((0, 0)) != background
    assert picture.treatment == ("flattened",)


def test_half_transparent_pixels_are_mixed_with_the_background() -> None:
    content = saved(Image.new("RGBA", (40, 40), (200, 0, 0, 128)), "PNG")
    assert load_picture(content, background=(0, 0, 0)).pixels.getpixel((5, 5)) == (100, 0, 0)


@pytest.mark.parametrize("mode", MODES)
def test_transparent_picture_is_refused_where_no_background_is_set(mode: str) -> None:
    with pytest.raises(ImageError, match=r"transparent in parts .*preview\.reference_background"):
        load_picture(hidden_in(mode), background=None)


@pytest.mark.parametrize("file_format", ["WEBP", "GIF", "TIFF", "AVIF"])
def test_other_formats_hide_no_colour_either(file_format: str) -> None:
    options = {} if file_format != "WEBP" else {"lossless": True, "exact": True}
    pixels = load_picture(saved(half_hidden(), file_format, **options), background=WHITE).pixels
    assert min(pixels.getpixel((63, 0))) > 245  # type: ignore[type-var, arg-type]


def test_opaque_picture_with_an_alpha_channel_is_read_as_it_always_was() -> None:
    image = noisy().convert("RGBA")
    picture = load_picture(saved(image, "PNG"), background=None)
    assert picture.treatment == ()
    assert picture.pixels.tobytes() == image.convert("RGB").tobytes() == load_image(saved(image, "PNG")).tobytes()


def srgb() -> bytes:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def curved(gamma: float) -> bytes:
    """sRGB's profile with its three curves replaced by a power."""
    content = bytearray(srgb())
    for number in range(int.from_bytes(content[128:132], "big")):
        entry = 132 + 12 * number
        if content[entry : entry + 4] in (b"rTRC", b"gTRC", b"bTRC"):
            start = int.from_bytes(content[entry + 4 : entry + 8], "big")
            content[start : start + 14] = b"curv\0\0\0\0\0\0\0\1" + round(gamma * 256).to_bytes(2, "big")
            content[entry + 8 : entry + 12] = (14).to_bytes(4, "big")
    return bytes(content)


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_colours_of_another_profile_become_those_that_viewers_show(file_format: str) -> None:
    content = saved(Image.new("RGB", (40, 40), (100, 100, 100)), file_format, icc_profile=curved(1.0))
    picture = load_picture(content, background=WHITE)
    assert picture.treatment == ("converted",)
    assert min(picture.pixels.getpixel((5, 5))) > 160  # type: ignore[type-var, arg-type]


def test_profile_of_srgb_itself_changes_no_pixel() -> None:
    image = noisy()
    picture = load_picture(saved(image, "PNG", icc_profile=srgb()), background=WHITE)
    assert (picture.treatment, picture.notes) == ((), ())
    assert picture.pixels.tobytes() == image.tobytes()


def test_transparent_picture_with_a_profile_has_both_done_to_it() -> None:
    picture = load_picture(saved(half_hidden(), "PNG", icc_profile=curved(1.0)), background=(10, 20, 30))
    assert picture.treatment == ("flattened", "converted")
    assert picture.pixels.getpixel((63, 0)) == (10, 20, 30)


@pytest.mark.parametrize("broken", [b"no profile at all", curved(1.0)[:200]])
def test_profile_that_cannot_be_used_is_noted(broken: bytes) -> None:
    assert load_picture(saved(noisy(), "JPEG", icc_profile=broken), background=WHITE).notes == (
        "colour_profile_ignored",
    )


@pytest.mark.parametrize(
    ("image", "notes"),
    [
        (Image.new("RGB", (64, 48), "white"), ("one_colour",)),
        (Image.new("L", (64, 48), 7), ("one_colour",)),
        (Image.fromarray(np.random.default_rng(0).integers(120, 126, (48, 64, 3)).astype(np.uint8)), ("one_colour",)),
        (Image.new("RGBA", (64, 48), (*RED, 0)), ("one_colour",)),
        (noisy(), ()),
    ],
    ids=["blank", "grey", "almost", "all transparent", "picture"],
)
def test_picture_of_one_colour_or_nearly_so_is_noted(image: Image.Image, notes: tuple[str, ...]) -> None:
    assert load_picture(saved(image, "PNG"), background=WHITE).notes == notes


def test_drawing_of_thin_lines_on_white_is_not_of_one_colour() -> None:
    image = Image.new("RGB", (400, 300), "white")
    ImageDraw.Draw(image).rectangle((100, 100, 200, 200), outline="black", width=2)
    assert load_picture(saved(image, "PNG"), background=WHITE).notes == ()


@pytest.mark.parametrize(("side", "is_tiny"), [(1, True), (2, True), (15, True), (16, False), (300, False)])
def test_picture_that_is_enlarged_beyond_sense_is_noted(side: int, is_tiny: bool) -> None:
    found = load_reference(saved(noisy(side, side), "PNG"), 64, 128, "original", WHITE)
    assert ("tiny" in found.notes) is is_tiny


@pytest.mark.parametrize("file_format", ["GIF", "PNG", "WEBP", "TIFF"])
def test_first_of_several_pictures_counts_and_is_noted(file_format: str) -> None:
    first, second = noisy(), noisy(seed=1).transpose(Image.Transpose.ROTATE_180)
    content = saved(first, file_format, save_all=True, append_images=[second])
    picture = load_picture(content, background=WHITE)
    assert picture.notes == ("first_of_several",)
    difference = np.asarray(picture.pixels).astype(int) - np.asarray(first)
    assert np.abs(difference).mean() < 12


@pytest.mark.parametrize("orientation", range(2, 9))
def test_every_orientation_is_turned_upright(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    shown = load_picture(saved(noisy(48, 32), "PNG", exif=exif), background=WHITE).pixels
    assert shown.size == ((48, 32) if orientation < 5 else (32, 48))


OTHERS = {
    "HEIC": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
    "a camera's RAW": b"\0\0\0\x18ftypcrx \0\0\0\1crx isom",
    "a video": b"\0\0\0\x18ftypisom\0\0\2\0isomiso2",
    "PDF": b"%PDF-1.7\n",
    "JPEG XL": b"\xff\x0a\xfa\x1f",
    "JPEG 2000": b"\0\0\0\x0cjP  \r\n\x87\n",
    "Photoshop": b"8BPS\0\1",
    "SVG": b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>',
    "a web page": b"<!DOCTYPE html><title>404</title>",
    "a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    "an empty file": b"",
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_kinds_are_refused_by_name_with_what_is_taken_and_what_to_do(kind: str) -> None:
    with pytest.raises(ImageError, match=f"it is {re.escape(kind)} ") as caught:
        load_picture(OTHERS[kind] + (bytes(3000) if kind not in ("an empty file",) else b""), background=WHITE)
    assert ", ".join(FORMATS) in str(caught.value)


def test_archive_is_called_one() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.png", b"x")
    with pytest.raises(ImageError, match=r"it is an archive .*unpack it"):
        load_picture(buffer.getvalue(), background=WHITE)


def test_small_copy_inside_a_cameras_file_is_no_picture() -> None:
    with pytest.raises(ImageError, match="it is a camera's RAW"):
        load_picture(saved(noisy(), "TIFF", tiffinfo={0x00FE: 1}), background=WHITE)


@pytest.mark.parametrize("side", [10_000, 14_000, 60_000])
def test_huge_picture_is_refused_with_the_limit_and_no_raw_warning(side: int, tmp_path: Path) -> None:
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    path = tmp_path / "huge.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + png_chunk(b"IDAT", b"") + png_chunk(b"IEND", b""))
    with warnings.catch_warnings(), pytest.raises(ImageError, match=rf"huge\.png: .*{image_module.MAX_PIXELS}"):
        warnings.simplefilter("error")
        load_picture(path, background=WHITE)
