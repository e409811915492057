"""Clips made of exact scenes, delivered by the product's own path from pixels and samples to an mp4."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from torch import Tensor

from demo_world.picture import draw_frames
from demo_world.takes import Take
from magi2.media.audio import write_audio
from magi2.media.deliver import deliver
from magi2.media.delivery import DeliverySpec
from magi2.media.ffmpeg import find_ffmpeg
from magi2.media.frames import to_uint8
from magi2.media.lossless import LosslessWriter

FFMPEG = find_ffmpeg()


def write_clip(folder: Path, pixels: Tensor, samples: Tensor, *, fps: Fraction, spec: DeliverySpec) -> Path:
    """An mp4 of decoded pixels [1, 3, F, H, W] in [-1, 1] and samples [2, n] at 44.1 kHz."""
    folder.mkdir(parents=True, exist_ok=True)
    picture, sound, clip = folder / "picture.mkv", folder / "sound.wav", folder / "clip.mp4"
    frames = to_uint8(pixels)
    with LosslessWriter(picture, width=frames.shape[2], height=frames.shape[1], fps=fps, ffmpeg=FFMPEG) as writer:
        writer.write(frames)
    write_audio(sound, samples)
    deliver(picture, sound, clip, spec, fps=fps, frame_count=len(frames), metadata={}, ffmpeg=FFMPEG)
    return clip


def preview_picture(take: Take) -> Tensor:
    """What an unrefined clip decodes to: 125 frames of 128 x 64 pixels at 12.5 per second."""
    return draw_frames(take, height=64, width=128, fps=12.5, frame_count=125)


def refined_picture(take: Take) -> Tensor:
    """What a refined clip decodes to: 249 frames of 256 x 128 pixels at 25 per second."""
    return draw_frames(take, height=128, width=256, fps=25.0, frame_count=249)
