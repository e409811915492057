"""Still pictures of a clip: a poster, a thumbnail of it and a contact sheet. Equal videos give equal bytes.

Each names its source in XMP as the clip does.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from magi2.errors import MediaError
from magi2.files import partial_file
from magi2.media.image import load_image
from magi2.media.marks.xmp import xmp_packet
from magi2.media.reading import count_frames, read_frames

POSTER_CANDIDATES = 9
CELL_WIDTH = 320
MARGIN = 4
THUMBNAIL_SIDE = 480
_FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP"}
_QUALITY: dict[str, dict[str, Any]] = {"JPEG": {"quality": 90}, "WEBP": {"quality": 80, "method": 4}}


def write_poster(video: Path, target: Path) -> None:
    """Save the most contrasted of nine evenly spaced frames of `video`, full size, as JPEG, PNG or WebP by suffix.

    Contrast keeps fades and black openings out. Two frames are in memory at most.
    Raises: MediaError when the video is unreadable or empty, or the target cannot be written.
    """
    best: tuple[float, Tensor] | None = None
    for frame in read_frames(video, indices=frozenset(_spread(_count(video), POSTER_CANDIDATES))):
        contrast = frame.float().std().item() if frame.numel() > 1 else 0.0
        if best is None or contrast > best[0]:
            best = (contrast, frame)
    if best is None:
        raise MediaError(f"{video}: ends before its first frame")
    _save(Image.fromarray(best[1].numpy()), target)


def write_thumbnail(poster: Path, target: Path) -> None:
    """Save a picture again, at most `THUMBNAIL_SIDE` pixels wide and high and never enlarged.

    Raises: ImageError when the poster is not readable, MediaError when the target cannot be written.
    """
    image = load_image(poster)
    image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.LANCZOS)
    _save(image, target)


def write_contact_sheet(video: Path, target: Path, columns: int = 4, rows: int = 4) -> None:
    """Save `columns` x `rows` evenly spaced frames of `video`, in reading order, at most 320 pixels wide each.

    A shorter clip leaves the last cells empty. One frame and the sheet are in memory.
    Raises: MediaError when the video is unreadable or empty, or the target cannot be written.
    """
    if columns < 1 or rows < 1:
        raise MediaError(f"contact sheet of {columns} x {rows} cells: want at least one of each")
    indices = _spread(_count(video), columns * rows)
    sheet = cell = None
    for position, frame in enumerate(read_frames(video, indices=frozenset(indices))):
        image = Image.fromarray(frame.numpy())
        if sheet is None:
            cell = _cell_size(image)
            size = (columns * (cell[0] + MARGIN) + MARGIN, rows * (cell[1] + MARGIN) + MARGIN)
            sheet = Image.new("RGB", size)
        assert cell is not None
        row, column = divmod(position, columns)
        thumbnail = image.resize(cell, Image.Resampling.LANCZOS)
        sheet.paste(thumbnail, (MARGIN + column * (cell[0] + MARGIN), MARGIN + row * (cell[1] + MARGIN)))
    if sheet is None:
        raise MediaError(f"{video}: ends before its first frame")
    _save(sheet, target)


def small_picture(frame: Tensor, side: int) -> bytes:
    """A frame [H, W, 3] uint8 as WebP, at most `side` pixels wide and high and never enlarged."""
    image = Image.fromarray(frame.numpy())
    image.thumbnail((side, side), Image.Resampling.BILINEAR)
    content = io.BytesIO()
    image.save(content, format="WEBP", quality=70)
    return content.getvalue()


def _count(video: Path) -> int:
    count = count_frames(video)
    if count == 0:
        raise MediaError(f"{video}: holds no frame")
    return count


def _spread(frame_count: int, wanted: int) -> list[int]:
    """At most `wanted` distinct frame numbers, each in the middle of its share of the clip."""
    wanted = min(wanted, frame_count)
    return [(2 * part + 1) * frame_count // (2 * wanted) for part in range(wanted)]


def _cell_size(image: Image.Image) -> tuple[int, int]:
    width = min(CELL_WIDTH, image.width)
    return width, max(1, round(image.height * width / image.width))


def _save(image: Image.Image, target: Path) -> None:
    file_format = _FORMATS.get(target.suffix.lower())
    if file_format is None:
        raise MediaError(f"cannot write {target}: a picture's name ends in one of {', '.join(_FORMATS)}")
    with partial_file(target, MediaError) as partial:
        image.save(partial, format=file_format, **_options(file_format))


def _options(file_format: str) -> dict[str, Any]:
    if file_format != "PNG":
        return {**_QUALITY[file_format], "xmp": xmp_packet()}
    texts = PngInfo()
    texts.add_itxt("XML:com.adobe.xmp", xmp_packet().decode())
    return {"pnginfo": texts}
