"""What a file is that is not read as a picture, and what to do with it."""

from __future__ import annotations

import re

_HEAD_BYTES = 1024
_CONVERT = "save it as PNG or JPEG and name that file"
RAW = ("a camera's RAW", f"develop it: {_CONVERT}")
"""What some files are that begin as TIFF does."""
_KINDS: tuple[tuple[str, str, str], ...] = (
    (r"\s*$", "an empty file", "copy the picture again"),
    (r".{4}ftyp(?:heic|heix|heim|heis|hevc|hevx|mif1|msf1)", "HEIC", _CONVERT),
    (r".{4}ftypcrx |II\*\0.{4}CR|FUJIFILMCCD-RAW|II(?:RO|RS|U\0)", *RAW),
    (r".{4}ftyp(?!avi[fs])|.{4}(?:moov|mdat)|\x1aE\xdf\xa3|RIFF.{4}AVI ", "a video", "save one of its frames as PNG"),
    (r"%PDF", "PDF", "save the page as PNG"),
    (r"%!PS|\xc5\xd0\xd3\xc6", "PostScript", "save it as PNG"),
    (r"\xff\x0a|\0\0\0\x0cJXL ", "JPEG XL", _CONVERT),
    (r"\0\0\0\x0cjP  |\xff\x4f\xff\x51", "JPEG 2000", _CONVERT),
    (r"8BPS", "Photoshop", _CONVERT),
    (r"gimp xcf", "GIMP", _CONVERT),
    (r"\0\0[\x01\x02]\0", "an icon", _CONVERT),
    (r"v/1\x01|\#\?RADIANCE", "a picture with a high dynamic range", _CONVERT),
    (r"(?s:.*)<svg[\s>]", "SVG", "draw it as PNG, at the size of the clip"),
    (r"(?i)\s*(?:<!doctype html|<html)", "a web page", "download the picture itself"),
    (r"version https://git-lfs", "a pointer of Git LFS", "fetch the picture: git lfs pull"),
    (
        r"PK\x03\x04|\x1f\x8b|7z\xbc\xaf|Rar!|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd",
        "an archive",
        "unpack it and name a picture",
    ),
)
_PATTERNS = [(re.compile(pattern.encode("latin-1"), re.DOTALL), kind, advice) for pattern, kind, advice in _KINDS]


def kind_of(content: bytes) -> tuple[str, str] | None:
    """What a file is by its first bytes, and what to do with it; None for what is not known."""
    head = content[:_HEAD_BYTES]
    return next(((kind, advice) for pattern, kind, advice in _PATTERNS if pattern.match(head)), None)
