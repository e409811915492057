"""Pictures of every mode as 8-bit sRGB, as viewers show them."""

from __future__ import annotations

import io
from typing import Literal

from PIL import Image, ImageChops, ImageCms

RGB = tuple[int, int, int]
"""Red, green and blue, 0 to 255."""
Treatment = Literal["flattened", "converted"]
"""flattened: transparent parts show a background; converted: colours of another profile are those of sRGB."""

_WIDE_GRAY_MODES = ("I", "I;16", "I;16L", "I;16B", "F")
_PROFILED = {"RGB": "RGB", "L": "GRAY", "CMYK": "CMYK"}
"""Modes with profiles of their own, and how these name them."""
_SAME = 2
"""Levels by which two ways to compute one colour may differ."""


def in_srgb(image: Image.Image) -> tuple[Image.Image, Literal["converted", "unusable"] | None]:
    """A picture without what makes it transparent, in mode RGB, and what its profile of colours was for.

    None: it has none, or one that says what sRGB does. Raises: ValueError for floating-point pixels.
    """
    plain, profile = in_plain_mode(image), image.info.get("icc_profile")
    if not profile:
        return plain.convert("RGB"), None
    try:
        transform = _transform(plain.mode, profile)
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):  # as readers of broken profiles do
        return plain.convert("RGB"), "unusable"
    return (_applied(transform, plain), "converted") if transform else (plain.convert("RGB"), None)


def transparency(image: Image.Image) -> Image.Image | None:
    """How opaque each pixel is, mode L; None when all are wholly so."""
    if not image.has_transparency_data:
        return None
    if image.mode in _WIDE_GRAY_MODES:
        return _opaque_where_not(image, image.info["transparency"])
    alpha = image.convert("RGBA").getchannel("A")
    return None if alpha.getextrema() == (255, 255) else alpha


def on_background(image: Image.Image, alpha: Image.Image, background: RGB) -> Image.Image:
    """An RGB picture over a colour that shows where it is not opaque."""
    return Image.composite(image, Image.new("RGB", image.size, background), alpha)


def _opaque_where_not(levels: Image.Image, hidden: int) -> Image.Image | None:
    import numpy as np

    alpha = np.where(np.asarray(levels) == hidden, 0, 255).astype(np.uint8)
    return None if alpha.min() else Image.fromarray(alpha)


def in_plain_mode(image: Image.Image) -> Image.Image:
    """A picture in one of the modes that can have a profile: 8 bit, without what makes it transparent.

    Raises: ValueError for floating-point pixels.
    """
    if image.mode in _WIDE_GRAY_MODES:
        return _eight_bit(image)
    if image.mode in ("1", "LA", "La"):
        return image.convert("L")
    return image if image.mode in _PROFILED else image.convert("RGB")


def _eight_bit(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise ValueError("floating-point pixels have no defined range")
    import numpy as np

    return Image.fromarray((np.asarray(image).clip(0, 65535) // 256).astype(np.uint8))


def _transform(mode: str, profile: bytes) -> ImageCms.ImageCmsTransform | None:
    """What leads from a profile to sRGB; None when it leads nowhere else. Raises: ValueError when it is for others."""
    source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
    if source.profile.xcolor_space.strip() != _PROFILED[mode]:
        raise ValueError("a profile for other colours")
    transform = ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB")
    samples = _samples(mode)
    difference = ImageChops.difference(samples.convert("RGB"), _applied(transform, samples))
    return transform if max(high for _, high in _extrema(difference)) > _SAME else None


def _applied(transform: ImageCms.ImageCmsTransform, image: Image.Image) -> Image.Image:
    shown = ImageCms.applyTransform(image, transform)
    assert shown is not None  # it is when not done in place
    shown.info.pop("icc_profile", None)
    return shown


def _samples(mode: str) -> Image.Image:
    """Colours from everywhere in the mode's space."""
    channels = len(Image.new(mode, (1, 1)).getbands())
    levels = range(0, 256, 51 if channels > 1 else 1)
    values = [bytes((level,)) for level in levels]
    for _ in range(channels - 1):
        values = [value + bytes((level,)) for value in values for level in levels]
    return Image.frombytes(mode, (len(values), 1), b"".join(values))


def _extrema(image: Image.Image) -> list[tuple[int, int]]:
    return [image.getchannel(band).getextrema() for band in image.getbands()]  # type: ignore[misc]
