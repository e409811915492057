"""Pictures and picture files for tests."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image


def noisy(width: int = 96, height: int = 64, seed: int = 0) -> Image.Image:
    """Shades that a file cannot hold in a few bytes."""
    noise = np.random.default_rng(seed).normal(0, 12, (height, width, 3))
    ramp = np.linspace(40, 200, width)[None, :, None]
    return Image.fromarray((ramp + noise).clip(0, 255).astype(np.uint8))


def saved(image: Image.Image, file_format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
