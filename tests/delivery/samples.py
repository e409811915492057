"""Small files for the tests of delivery."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np


def write_mp4(path: Path, frames: int = 5, **metadata: str) -> Path:
    """A tiny clip, made in this process."""
    with av.open(str(path), "w", options={"movflags": "use_metadata_tags"}) as container:
        container.metadata.update(metadata)
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        for index in range(frames):
            picture = np.full((32, 32, 3), 40 * index, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return path


def flip_bit(path: Path, place: int) -> None:
    """Change one bit of one byte."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
