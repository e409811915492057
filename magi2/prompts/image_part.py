"""Images as the language model gets them: upright, of honest type, and not larger than asked for."""

from __future__ import annotations

import base64
import binascii
import io
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps, UnidentifiedImageError

from magi2.errors import ImageError
from magi2.media.colours import in_plain_mode, on_background, transparency

MAX_SIDE = 2048  # pixels; vision models scale larger pictures down themselves
_MIN_SIDE = 64  # pixels; below, a picture says nothing
_MAX_FILE_BYTES = 128 * 1024 * 1024
_PASSED_AS_IS = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp"}
_ORIENTATION_TAG = 0x0112
_JPEG_QUALITY = 90
_BACKGROUND = (255, 255, 255)
_REMOTE = ("http://", "https://")


def image_part(source: str | Path | bytes, *, max_bytes: int) -> dict[str, Any]:
    """The `image_url` part of a message for this image."""
    return {"type": "image_url", "image_url": {"url": image_url(source, max_bytes=max_bytes)}}


def image_url(source: str | Path | bytes, *, max_bytes: int) -> str:
    """A URL that carries the image: remote ones unchanged, files and bytes as a data URL of at most `max_bytes`.

    Schemes are read whatever their case. A data URL whose content is a known image is treated like a file; one that
    is small and unknown is left to the endpoint.
    Raises: ImageError if the image is missing, unreadable or cannot be made small enough.
    """
    if isinstance(source, str):
        scheme = source[:8].lower()
        if scheme.startswith(_REMOTE):
            return source
        if scheme.startswith("data:"):
            return _checked_data_url(source, max_bytes)
    return _data_url(_read(source), max_bytes)


def _read(source: str | Path | bytes) -> bytes:
    if isinstance(source, bytes):
        return source
    path = Path(source).expanduser()
    try:
        size = path.stat().st_size
        if size > _MAX_FILE_BYTES:
            raise ImageError(f"image {path.name} has {size} bytes, limit {_MAX_FILE_BYTES}")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        raise ImageError(f"image {path.name[:80]!r} cannot be read: {reason}") from error


def _checked_data_url(url: str, max_bytes: int) -> str:
    header, _, payload = url.partition(",")
    if not header.lower().endswith(";base64"):
        raise ImageError("a data: image must be base64", hint="write data:image/png;base64,...")
    try:
        content = base64.b64decode(payload, validate=True)
    except binascii.Error:
        raise ImageError("a data: image has broken base64") from None
    try:
        return _data_url(content, max_bytes, url)
    except UnidentifiedImageError:
        if len(content) > max_bytes:
            raise ImageError(f"a data: image of unknown type has {len(content)} bytes, limit {max_bytes}") from None
        return url


def _data_url(content: bytes, max_bytes: int, original: str | None = None) -> str:
    """`original` (or a data URL of the bytes) when they can be passed as they are, else of a JPEG made from them."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            mime = _PASSED_AS_IS.get(image.format or "")
            as_shown = image.getexif().get(_ORIENTATION_TAG, 1) == 1 and transparency(image) is None
            if mime and as_shown and max(image.size) <= MAX_SIDE and len(content) <= max_bytes:
                url = f"data:{mime};base64,{base64.b64encode(content).decode()}"
                return original if original is not None and original.startswith(f"data:{mime};") else url
            picture = _shown(ImageOps.exif_transpose(image))
    except UnidentifiedImageError:
        if original is not None:
            raise
        raise ImageError("the file is no image of a known type") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ImageError(f"the image cannot be decoded: {type(error).__name__}") from None
    return f"data:image/jpeg;base64,{base64.b64encode(_jpeg(picture, max_bytes)).decode()}"


def _shown(image: Image.Image) -> Image.Image:
    """A picture in RGB, over `_BACKGROUND` where it is transparent: what is beneath nobody was meant to see."""
    plain, alpha = in_plain_mode(image).convert("RGB"), transparency(image)
    return plain if alpha is None else on_background(plain, alpha, _BACKGROUND)


def _jpeg(picture: Image.Image, max_bytes: int) -> bytes:
    side = min(MAX_SIDE, max(picture.size))
    while True:
        picture.thumbnail((side, side))
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=_JPEG_QUALITY)
        if buffer.tell() <= max_bytes:
            return buffer.getvalue()
        side = side * 3 // 4
        if side < _MIN_SIDE:
            hint = "raise the limit for images of the endpoint"
            raise ImageError(f"the image does not fit {max_bytes} bytes", hint=hint)
