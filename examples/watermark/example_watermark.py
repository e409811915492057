"""An example of a watermark: the bits of a clip's id as slightly brighter and darker cells of a grid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

SIDE = 16
"""Cells in a row and in a column: one for each of the id's 256 bits."""
STEP = 2
"""Levels of 255 by which a cell is brighter or darker."""


def embed(frames: Iterable[NDArray[np.uint8]], content_id: str) -> Iterator[NDArray[np.uint8]]:
    """The frames, uint8 [H, W, 3], with the grid of `content_id`, 64 hexadecimal digits, over each."""
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(content_id), dtype=np.uint8)).reshape(SIDE, SIDE)
    for frame in frames:
        height, width, _ = frame.shape
        rows, columns = np.arange(height) * SIDE // height, np.arange(width) * SIDE // width
        change = np.where(bits[rows[:, None], columns[None, :]], STEP, -STEP)
        yield np.clip(frame.astype(np.int16) + change[..., None], 0, 255).astype(np.uint8)
