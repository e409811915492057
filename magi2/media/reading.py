"""Frames out of a video file, one at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import av
from av.container import InputContainer
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from magi2.errors import MediaError

if TYPE_CHECKING:
    from torch import Tensor


@contextmanager
def open_media(path: Path, *, metadata_errors: str = "strict") -> Iterator[InputContainer]:
    """An open container; every ffmpeg error inside the block becomes a MediaError naming the file.

    `metadata_errors` says what becomes of tags that are no UTF-8, as in `bytes.decode`.
    """
    if not path.is_file():
        raise MediaError(f"{path}: no such media file")
    try:
        with av.open(str(path.absolute()), mode="r", metadata_errors=metadata_errors) as container:
            yield container
    except av.FFmpegError as error:
        raise MediaError(f"{path}: not readable: {error.strerror}") from error


def video_stream(container: InputContainer) -> VideoStream:
    """The first video stream, set to decode on several threads; raises MediaError when there is none."""
    if not container.streams.video:
        raise MediaError(f"{container.name}: holds no video")
    stream = container.streams.video[0]
    stream.thread_type = "AUTO"
    return stream


def count_frames(path: Path) -> int:
    """Frames of the first video stream, counted by its packets: nothing is decoded."""
    with open_media(path) as container:
        return sum(packet.size > 0 for packet in container.demux(video_stream(container)))


def read_frames(path: Path, *, indices: frozenset[int] | None = None) -> Iterator[Tensor]:
    """The frames of a video in order, each uint8 [H, W, 3] RGB; only those at `indices` when given.

    Bit-exact for the lossless intermediate, of which no other frames are decoded; a delivered file is converted with
    the matrix it is tagged with. One frame is in memory at a time. Raises: MediaError when the file cannot be read to
    its end.
    """
    import torch  # not at the top: processes that never load it try out ffmpeg

    with open_media(path) as container:
        for frame in _chosen(container, indices):
            yield torch.from_numpy(frame.to_ndarray(format="rgb24", src_colorspace=frame.colorspace))


def _chosen(container: InputContainer, indices: frozenset[int] | None) -> Iterator[VideoFrame]:
    """The frames at `indices`, or all of them."""
    stream = video_stream(container)
    if indices is None:
        yield from container.decode(stream)
    elif stream.codec_context.name == "ffv1":
        yield from _decoded_alone(container, stream, indices)
    else:
        for index, frame in enumerate(container.decode(stream)):
            if index in indices:
                yield frame


def _decoded_alone(container: InputContainer, stream: VideoStream, indices: frozenset[int]) -> Iterator[VideoFrame]:
    """The frames at `indices` of a stream whose packets are a frame each, decoded from the last key frame on."""
    unseen: list[tuple[int, Packet[VideoStream]]] = []
    decoded: deque[int] = deque()
    for index, packet in enumerate(container.demux(stream)):
        is_end = packet.size == 0
        if packet.is_keyframe or is_end:
            unseen.clear()
        unseen.append((index, packet))
        if index not in indices and not is_end:
            continue
        for number, part in unseen:
            decoded.append(number)
            for frame in part.decode():  # threads give frames later
                if decoded.popleft() in indices:
                    yield frame
        unseen.clear()
