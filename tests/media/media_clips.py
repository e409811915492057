"""Synthetic pictures and sounds that the media tests share."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import torch

from magi2.media.ffmpeg import Ffmpeg
from magi2.media.lossless import LosslessWriter


def moving_frames(count: int, height: int, width: int) -> torch.Tensor:
    """A bright bar crossing a gradient with a little noise, uint8 [count, height, width, 3]."""
    rows = torch.linspace(0, 200, height).expand(width, height).T
    frames = rows[None, :, :, None].repeat(count, 1, 1, 3)
    frames += torch.rand(frames.shape, generator=torch.Generator().manual_seed(0)) * 10
    for index in range(count):
        start = index * width // count
        frames[index, :, start : start + max(1, width // 8)] = torch.tensor([250.0, 40.0, 90.0])
    return frames.to(torch.uint8)


def tone(count: int, frequency: float = 440.0) -> torch.Tensor:
    """A stereo sine, fp32 [2, count] at 44.1 kHz."""
    wave = 0.3 * torch.sin(2 * torch.pi * frequency * torch.arange(count) / 44_100)
    return torch.stack([wave, 0.5 * wave])


def write_lossless(path: Path, frames: torch.Tensor, *, program: Ffmpeg, fps: Fraction = Fraction(25)) -> Path:
    height, width = frames.shape[1:3]
    with LosslessWriter(path, width=width, height=height, fps=fps, ffmpeg=program) as writer:
        for window in frames.split(28):
            writer.write(window)
    return path
