"""A lossless picture passed through a watermark."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from magi2.errors import Magi2Error, MediaError, in_one_line
from magi2.media.ffmpeg import Ffmpeg
from magi2.media.lossless import LosslessWriter
from magi2.media.reading import count_frames, read_frames
from magi2.media.watermarks import Watermark


def write_watermarked(
    video: Path, target: Path, watermark: Watermark, content_id: str, *, fps: Fraction, ffmpeg: Ffmpeg
) -> None:
    """Write the frames of the lossless `video`, as `watermark` gives them back for `content_id`, to `target`.

    Raises: MediaError when they are fewer, more or otherwise shaped than it was given, or when it fails.
    """
    height, width, _ = next(read_frames(video)).shape
    count = count_frames(video)
    frames = (frame.numpy() for frame in read_frames(video))
    with LosslessWriter(target, width=width, height=height, fps=fps, ffmpeg=ffmpeg) as writer:
        for frame in _given_back(watermark, frames, content_id):
            if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.shape != (height, width, 3):
                shape = f"{getattr(frame, 'dtype', type(frame).__name__)} {getattr(frame, 'shape', '')}"
                raise MediaError(f"the watermark gave back {shape}, want uint8 [{height}, {width}, 3]")
            if writer.frame_count == count:
                raise MediaError(f"the watermark gave back more than the {count} frames that it was given")
            writer.write(torch.from_numpy(np.ascontiguousarray(frame))[None])
        if writer.frame_count != count:
            raise MediaError(f"the watermark gave back {writer.frame_count} frames of {count}")


def _given_back(
    watermark: Watermark, frames: Iterator[NDArray[np.uint8]], content_id: str
) -> Iterator[NDArray[np.uint8]]:
    try:
        yield from watermark(frames, content_id)
    except Magi2Error:
        raise
    except Exception as error:  # code of others, which raises what it likes
        raise MediaError(f"the watermark failed: {type(error).__name__}: {in_one_line(error)}") from error
