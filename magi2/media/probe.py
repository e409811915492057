"""What a finished file really holds, and whether that is the clip that was planned."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from magi2.errors import MediaError
from magi2.media.reading import open_media

DURATION_TOLERANCE_S = 0.020

COLOR_RANGES = {1: "tv", 2: "pc"}
COLOR_TAGS = {1: "bt709", 5: "bt470bg", 6: "smpte170m", 9: "bt2020"}
"""H.273 codes that mean the same as primaries, transfer and matrix, as far as clips meet them."""


@dataclass(frozen=True)
class VideoProbe:
    """The first video stream. `frame_count` frames were decoded, `duration_s` is the container's word."""

    codec: str
    width: int
    height: int
    frame_count: int
    fps: Fraction
    pix_fmt: str
    color_range: str
    color_primaries: str
    color_trc: str
    color_space: str
    duration_s: float


@dataclass(frozen=True)
class AudioProbe:
    """The first audio stream. `duration_s` is the container's: the encoder's padding beyond it is never played."""

    codec: str
    sample_rate_hz: int
    channels: int
    duration_s: float


@dataclass(frozen=True)
class MediaProbe:
    """One file, decoded from end to end."""

    size_bytes: int
    duration_s: float
    video: VideoProbe | None
    audio: AudioProbe | None
    metadata: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """The report as plain JSON types; the frame rate is text such as "25/2"."""
        report = dataclasses.asdict(self)
        if self.video is not None:
            report["video"]["fps"] = str(self.video.fps)
        return report


@dataclass(frozen=True)
class ExpectedClip:
    """What a delivered clip must be: picture and sound of the same length, in BT.709."""

    codec: str
    width: int
    height: int
    frame_count: int
    fps: Fraction
    audio_codec: str = "aac"
    sample_rate_hz: int = 44_100
    channels: int = 2

    @property
    def duration_s(self) -> float:
        return float(self.frame_count / self.fps)


def probe(path: Path) -> MediaProbe:
    """Decode the whole file and report what is in it. Raises: MediaError when any part of it cannot be read."""
    with open_media(path) as container:
        frames, samples = _decode_all(container)
        video = _video(container.streams.video[0], container, frames) if container.streams.video else None
        audio = _audio(container.streams.audio[0], container, samples) if container.streams.audio else None
        return MediaProbe(
            size_bytes=path.stat().st_size,
            duration_s=(container.duration or 0) / 1_000_000,
            video=video,
            audio=audio,
            metadata=dict(container.metadata),
        )


def check_clip(found: MediaProbe, expected: ExpectedClip) -> None:
    """Raise MediaError naming every difference; durations may differ by `DURATION_TOLERANCE_S`."""
    if found.video is None or found.audio is None:
        missing = [name for name, stream in (("picture", found.video), ("sound", found.audio)) if stream is None]
        raise MediaError(f"the clip has no {' and no '.join(missing)}")
    video, audio = found.video, found.audio
    pairs = {
        "codec": (video.codec, expected.codec),
        "size": (f"{video.width}x{video.height}", f"{expected.width}x{expected.height}"),
        "frames": (video.frame_count, expected.frame_count),
        "fps": (video.fps, expected.fps),
        "pixel format": (video.pix_fmt, "yuv420p"),
        "colour": (
            (video.color_range, video.color_primaries, video.color_trc, video.color_space),
            ("tv", "bt709", "bt709", "bt709"),
        ),
        "audio codec": (audio.codec, expected.audio_codec),
        "sample rate": (audio.sample_rate_hz, expected.sample_rate_hz),
        "channels": (audio.channels, expected.channels),
    }
    differences = [f"{name} {actual}, want {wanted}" for name, (actual, wanted) in pairs.items() if actual != wanted]
    for name, seconds in (("picture", video.duration_s), ("sound", audio.duration_s)):
        if abs(seconds - expected.duration_s) > DURATION_TOLERANCE_S:
            differences.append(f"{name} lasts {seconds:.3f} s, want {expected.duration_s:.3f} s")
    if differences:
        raise MediaError("the clip is not what was planned: " + "; ".join(differences))


def _decode_all(container: InputContainer) -> tuple[int, int]:
    for stream in container.streams.video:
        stream.thread_type = "AUTO"
    frames = samples = 0
    streams = [*container.streams.video[:1], *container.streams.audio[:1]]
    for frame in container.decode(streams) if streams else ():
        if isinstance(frame, VideoFrame):
            frames += 1
        elif isinstance(frame, AudioFrame):
            samples += frame.samples
    return frames, samples


def _video(stream: VideoStream, container: InputContainer, frame_count: int) -> VideoProbe:
    context = stream.codec_context
    return VideoProbe(
        codec=context.codec.canonical_name,
        width=context.width,
        height=context.height,
        frame_count=frame_count,
        fps=Fraction(stream.average_rate or 0),
        pix_fmt=context.pix_fmt or "unknown",
        color_range=COLOR_RANGES.get(int(context.color_range), "unknown"),
        color_primaries=COLOR_TAGS.get(int(context.color_primaries), "unknown"),
        color_trc=COLOR_TAGS.get(int(context.color_trc), "unknown"),
        color_space=COLOR_TAGS.get(int(context.colorspace), "unknown"),
        duration_s=_seconds(stream, container),
    )


def _audio(stream: AudioStream, container: InputContainer, samples: int) -> AudioProbe:
    context = stream.codec_context
    return AudioProbe(
        codec=context.codec.canonical_name,
        sample_rate_hz=context.sample_rate,
        channels=context.channels,
        duration_s=_seconds(stream, container) if samples else 0.0,
    )


def _seconds(stream: VideoStream | AudioStream, container: InputContainer) -> float:
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    return (container.duration or 0) / 1_000_000  # Matroska states one duration for all streams
