"""The lossless intermediate: RGB frames streamed into FFV1 in Matroska, equal bytes for equal frames."""

from __future__ import annotations

from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import ffmpeg as graph

from magi2.errors import ContractError, MediaError
from magi2.files import partial_file
from magi2.media.ffmpeg import Ffmpeg, FfmpegProcess, file_url

if TYPE_CHECKING:
    from torch import Tensor

SLICES = 4
"""Parts of a frame that are coded in parallel; part of the stream, so the same on every machine."""


class LosslessWriter:
    """Context manager that turns frames into a file at `path`, through a pipe that holds back a too fast decoder.

    Nothing is buffered beyond the frame being written. The file appears when the block ends well; when it raises, or
    ffmpeg dies, neither the file nor a partial one is left. Same frames, same program: same bytes.
    """

    def __init__(self, path: Path, *, width: int, height: int, fps: Fraction, ffmpeg: Ffmpeg) -> None:
        if width < 1 or height < 1 or fps <= 0:
            raise ContractError(f"{path}: cannot write {width}x{height} pixels at {fps} fps")
        self.path, self.width, self.height, self.fps = path, width, height, fps
        self.frame_count = 0
        self._ffmpeg = ffmpeg

    def __enter__(self) -> Self:
        self._ffmpeg.require("ffv1")
        with ExitStack() as stack:
            partial = stack.enter_context(partial_file(self.path, MediaError))
            stream = lossless_stream(partial, width=self.width, height=self.height, fps=self.fps)
            process = FfmpegProcess(self._ffmpeg, stream, purpose=f"write {self.path}", feeds=True)
            self._process = stack.enter_context(process)
            self._cleanup = stack.pop_all()
        return self

    @property
    def pid(self) -> int:
        """Process id of the running ffmpeg."""
        return self._process.pid

    def write(self, frames: Tensor) -> None:
        """Append `frames`, uint8 [f, H, W, 3]. Raises: ContractError for another shape, MediaError if ffmpeg died."""
        import torch  # not at the top: processes that never load it try out ffmpeg

        if frames.dtype != torch.uint8 or frames.dim() != 4 or frames.shape[1:] != (self.height, self.width, 3):
            want = f"torch.uint8 [f, {self.height}, {self.width}, 3]"
            raise ContractError(f"{self.path}: frames are {frames.dtype} {tuple(frames.shape)}, want {want}")
        for frame in frames.detach().cpu():
            self._process.write(memoryview(frame.contiguous().numpy()).cast("B"))
            self.frame_count += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self.frame_count == 0:
            error = MediaError(f"{self.path}: no frame was written")
            self._cleanup.__exit__(MediaError, error, None)
            raise error
        self._cleanup.__exit__(kind, error, trace)


def lossless_stream(target: Path, *, width: int, height: int, fps: Fraction) -> Any:
    """An output node of ffmpeg-python that turns raw RGB frames on stdin into the lossless file."""
    source = graph.input("pipe:", format="rawvideo", pix_fmt="rgb24", s=f"{width}x{height}", framerate=str(fps))
    slices = SLICES if min(width, height) >= 2 else 1
    options = {"c:v": "ffv1", "level": 3, "g": 1, "slices": slices, "slicecrc": 1, "threads": SLICES}
    bitexact = {"fflags": "+bitexact", "flags:v": "+bitexact"}
    return source.output(file_url(target), format="matroska", pix_fmt="bgr0", **options, **bitexact)
