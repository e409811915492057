"""The exact sound of a take, in rows of 40 ms, of which the audio model makes one latent each.

Every frequency is a multiple of 25 Hz, so a row holds whole cycles from phase zero: a steady tone is one waveform over
and over, and no row depends on the one before it. A sweep is a staircase of such tones, the buzz one fixed waveform.
"""

# Shapes: A rows of 40 ms, N samples

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from demo_world.scenes import Sound
from demo_world.takes import CONTACT_PERIOD_S, Take
from magi2.models.audio_vae.resample import resample_fourier

ROW_SAMPLES = 2048
ROWS_PER_SECOND = 25
ROW_COUNT = 250
"""Rows of a clip: ten seconds."""
STEP_HZ = 25
TONES_HZ = range(175, 1126, STEP_HZ)
"""Every tone that occurs."""
STEADY_HZ: dict[Sound, int] = {"low": 200, "mid": 500, "high": 1000}
BEEP_HZ = 750
BEEP_ROWS = 4
"""0.16 s."""
SWEEP_HZ = (300, 1100)
SECOND_HARMONIC = 0.15
BUZZ_HARMONICS = range(8, 161)
"""Of 25 Hz: 200 to 4000 Hz, all equally loud."""


@dataclass(frozen=True)
class SoundRows:
    """What each row plays, all [A]: a tone's frequency in Hz with its gain, and the buzz's gain."""

    frequency: Tensor
    tone_gain: Tensor
    buzz_gain: Tensor


def sound_rows(take: Take, count: int = ROW_COUNT) -> SoundRows:
    """The score of a take, `count` rows from the beginning; a sweep takes all of them."""
    sound, row = take.scene.sound, torch.arange(count, dtype=torch.float32)
    low, high = SWEEP_HZ
    climb = STEP_HZ * torch.floor(row * ((high - low) // STEP_HZ + 1) / count)
    silent, constant = torch.zeros_like(row), torch.full_like(row, take.gain)
    if sound == "silence":
        return SoundRows(silent + BEEP_HZ, silent, silent)
    if sound == "buzz":
        return SoundRows(silent + BEEP_HZ, silent, constant)
    if sound == "beeps":
        period = round(CONTACT_PERIOD_S[take.scene.speed] * ROWS_PER_SECOND)
        return SoundRows(silent + BEEP_HZ, constant * (row % period < BEEP_ROWS), silent)
    if sound in ("rise", "fall"):
        return SoundRows(low + climb if sound == "rise" else high - climb, constant, silent)
    return SoundRows(silent + STEADY_HZ[sound] + STEP_HZ * take.pitch_step, constant, silent)


def tone_wave(frequency: float) -> Tensor:
    """One row of a tone at full gain: [2048] fp64."""
    phase = 2 * math.pi * frequency * torch.arange(ROW_SAMPLES, dtype=torch.float64) / (ROW_SAMPLES * ROWS_PER_SECOND)
    return (1 - SECOND_HARMONIC) * phase.sin() + SECOND_HARMONIC * (2 * phase).sin()


def buzz_wave() -> Tensor:
    """One row of the buzz at full gain, peak 1: [2048] fp64. Phases that grow with the square keep its crest low."""
    base = 2 * math.pi * torch.arange(ROW_SAMPLES, dtype=torch.float64) / ROW_SAMPLES
    count = len(BUZZ_HARMONICS)
    partials = [torch.sin(number * base + math.pi * index**2 / count) for index, number in enumerate(BUZZ_HARMONICS)]
    wave = torch.stack(partials).sum(0)
    return wave / wave.abs().max()


def wave_table() -> Tensor:
    """Every waveform that a row can be made of: [K, 2048] fp64, the tones in order, the buzz last."""
    return torch.stack([*map(tone_wave, TONES_HZ), buzz_wave()])


def row_gains(rows: SoundRows) -> Tensor:
    """How loud each waveform of `wave_table` is in each row: [A, K] fp32."""
    gains = torch.zeros(len(rows.frequency), len(TONES_HZ) + 1)
    tone = ((rows.frequency - TONES_HZ[0]) / STEP_HZ).round().long()
    gains.scatter_(1, tone[:, None], rows.tone_gain[:, None])
    gains[:, -1] = rows.buzz_gain
    return gains


def waveform(take: Take, count: int = ROW_COUNT) -> Tensor:
    """The sound on the decoder's time base (51,200 samples per second): [2, 2048 count] fp32, both channels alike."""
    samples = row_gains(sound_rows(take, count)).double() @ wave_table()
    return samples.float().reshape(1, -1).repeat(2, 1)


def delivered_sound(take: Take, count: int = ROW_COUNT) -> Tensor:
    """The sound at 44.1 kHz, resampled as decoding does it: [2, 1764 count] fp32."""
    return resample_fourier(waveform(take, count))
