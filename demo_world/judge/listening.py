"""What a clip sounds like: its class, and when beeps begin."""

# Shapes: A rows of 40 ms, N samples

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from demo_world.scenes import Sound
from demo_world.sound import ROWS_PER_SECOND, STEP_HZ
from magi2.errors import MediaError
from magi2.media.reading import open_media

SILENT_LEVEL = 0.03
"""Root mean square of the loudest row below which a clip is silent."""
SOUNDING_SHARE = 0.4
"""Of the loud rows' level: a row above it sounds."""
BEEPING_SHARE = 0.6
"""A clip of which less sounds than this is made of beeps."""
TONAL_SHARE = 0.35
"""Of a row's power in its strongest frequency; a buzz has less."""
SWEEP_HZ = 250
LOW_HZ, MID_HZ = 350, 750
LISTENED_HZ = 10_000


@dataclass(frozen=True)
class Heard:
    """A sound's class, and the seconds at which it sets in."""

    sound: Sound
    onsets: tuple[float, ...]


def listen_to(path: Path) -> Heard:
    """Measure the sound of a media file. Raises: MediaError when it has none, or cannot be read."""
    samples, rate_hz = read_sound(path)
    return listen(samples, rate_hz=rate_hz)


def read_sound(path: Path) -> tuple[Tensor, int]:
    """The first audio stream as [channels, n] fp32 and its rate; encoder delay that the container names is cut."""
    with open_media(path) as container:
        if not container.streams.audio:
            raise MediaError(f"{path}: holds no sound")
        stream = container.streams.audio[0]
        parts = [frame.to_ndarray() for frame in container.decode(stream)]
        rate_hz = stream.rate
    if not parts or parts[0].dtype != np.float32:
        raise MediaError(f"{path}: sound is empty or not in planes of floats")
    return torch.from_numpy(np.concatenate(parts, axis=1)), rate_hz


def listen(samples: Tensor, *, rate_hz: int) -> Heard:
    """Measure samples [channels, n] row by row, 40 ms each, so that frequencies are counted in steps of 25 Hz."""
    row_samples = rate_hz // ROWS_PER_SECOND
    mono = samples.mean(0)
    rows_AN = mono[: len(mono) // row_samples * row_samples].view(-1, row_samples)
    level = rows_AN.square().mean(1).sqrt()
    if len(level) == 0 or level.max() < SILENT_LEVEL:
        return Heard("silence", ())
    sounds = level > SOUNDING_SHARE * level.quantile(0.98)
    begins = sounds & ~torch.cat([torch.tensor([False]), sounds[:-1]])
    onsets = tuple(row / ROWS_PER_SECOND for row in begins.nonzero()[:, 0].tolist())
    if sounds.float().mean() < BEEPING_SHARE:
        return Heard("beeps", onsets)
    power = torch.fft.rfft(rows_AN[sounds] * torch.hann_window(row_samples)).abs().square()
    return Heard(_class_of(power[:, : LISTENED_HZ // STEP_HZ]), onsets)


def _class_of(power: Tensor) -> Sound:
    """The class of sounding rows' power spectra [A, bins]."""
    if (power.amax(1) / power.sum(1)).median() < TONAL_SHARE:
        return "buzz"
    peak_hz = power.argmax(1).float() * STEP_HZ
    fifth = max(1, len(peak_hz) // 5)
    climb = (peak_hz[-fifth:].median() - peak_hz[:fifth].median()).item()
    if abs(climb) > SWEEP_HZ:
        return "rise" if climb > 0 else "fall"
    pitch = peak_hz.median().item()
    return "low" if pitch < LOW_HZ else "mid" if pitch < MID_HZ else "high"
