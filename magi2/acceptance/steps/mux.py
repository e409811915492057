"""Encoding the clip that is delivered, from lossless frames as decode writes them; twice with equal bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from magi2.acceptance.plan import Difference, Figure, Found
from magi2.acceptance.site import Site
from magi2.artifacts.recipe import sha256_file
from magi2.media.audio import audio_sample_count, write_audio
from magi2.media.deliver import deliver
from magi2.media.delivery import SAMPLE_RATE_HZ, delivered_frame_count
from magi2.media.ffmpeg import Ffmpeg
from magi2.media.fitness import fit_ffmpeg
from magi2.media.lossless import LosslessWriter
from magi2.media.probe import ExpectedClip, check_clip, probe
from magi2.recipes.book import delivered_frames, frame_rate


def run(site: Site) -> Iterator[Found]:
    """The largest profile's clip, with a picture that moves; what is not as planned fails the step."""
    profile = site.largest
    decoded, fps, frames = profile.refiner or profile.preview, frame_rate(profile), delivered_frames(profile)
    width, height = profile.delivered_size
    ffmpeg = fit_ffmpeg(site.settings.ffmpeg, profile.delivery)
    picture, sound = site.folder / "picture.mkv", site.folder / "sound.wav"
    started = time.monotonic()
    write_picture(picture, (decoded.width, decoded.height), frames, fps, ffmpeg)
    yield Figure("lossless", round(1e3 * (time.monotonic() - started), 1), "ms")
    seconds = torch.arange(profile.duration_s * SAMPLE_RATE_HZ) / SAMPLE_RATE_HZ
    write_audio(sound, 0.3 * torch.sin(2 * torch.pi * 440 * seconds).expand(2, -1).contiguous())
    clips, spans = [site.folder / f"clip{number}.mp4" for number in range(2)], []
    for clip in clips:
        started = time.monotonic()
        deliver(
            picture, sound, clip, profile.delivery, fps=fps, frame_count=frames, metadata={}, ffmpeg=ffmpeg, label=None
        )
        spans.append(1e3 * (time.monotonic() - started))
    count = delivered_frame_count(profile.delivery, frame_count=frames, fps=fps, sample_count=audio_sample_count(sound))
    check_clip(probe(clips[0]), ExpectedClip(profile.delivery.codec, width, height, count, fps))
    yield Figure("size", f"{width}x{height}")
    yield Figure("pixels", width * height * frames)
    yield Figure("clip", round(min(spans), 1), "ms")
    yield Figure("bytes", clips[0].stat().st_size)
    if len({sha256_file(clip) for clip in clips}) > 1:
        yield Difference("the same frames gave other bytes the second time")


def write_picture(path: Path, size: tuple[int, int], frames: int, fps: Fraction, ffmpeg: Ffmpeg) -> None:
    """A lossless file of frames in which waves of colour move."""
    width, height = size
    with LosslessWriter(path, width=width, height=height, fps=fps, ffmpeg=ffmpeg) as writer:
        for number in range(frames):
            writer.write(_frame(width, height, number))


def _frame(width: int, height: int, number: int) -> Tensor:
    """uint8 [1, H, W, 3]."""
    rows = torch.arange(height).unsqueeze(1) / 40 + number / 9
    columns = torch.arange(width).unsqueeze(0) / 50 - number / 7
    waves = [torch.sin(rows + shift) + torch.cos(columns - shift) for shift in (0.0, 1.0, 2.0)]
    return (127.5 + 60 * torch.stack(waves, dim=-1)).to(torch.uint8).unsqueeze(0)
