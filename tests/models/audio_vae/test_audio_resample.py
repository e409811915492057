"""Fourier resampling against golden vectors and scipy."""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from magi2.errors import ContractError
from magi2.models.audio_vae.resample import resample_fourier

LENGTHS = ["noise_512", "noise_513", "noise_1000", "noise_1001", "noise_2048", "noise_5121", "chirp_4096"]


def real_input(golden: Path) -> torch.Tensor:
    """The published length, rebuilt from its recipe: [2, 512000] fp32."""
    recipe = json.loads((golden / "audio/resample_real_input.json").read_text())
    n, rate = recipe["length"], 51200.0
    t = np.arange(n) / rate
    phase = 2 * np.pi * (50 * t + 0.5 * (24000 - 50) / (n / rate) * t**2)
    chirp = np.stack([0.8 * np.sin(phase), 0.5 * np.cos(0.5 * phase)], axis=1).astype(np.float32)
    noise = np.random.RandomState(77).standard_normal((n, 2))
    samples = np.round(chirp * 20000).astype(np.int16) + np.round(noise * 1500).astype(np.int16)
    assert hashlib.sha256(samples.astype("<i2").tobytes()).hexdigest() == recipe["sha256_int16_little_endian_C_order"]
    return torch.from_numpy(samples.astype(np.float32) / 32768).T.contiguous()


@pytest.mark.parametrize("case", LENGTHS)
def test_short_signals_match_golden(golden: Path, device: torch.device, case: str) -> None:
    tensors = load_file(golden / "audio/resample.safetensors")
    actual = resample_fourier(tensors[f"{case}.in"].T.to(device)).T.cpu()
    assert actual.dtype == torch.float32
    assert actual.shape == tensors[f"{case}.out"].shape
    assert (actual - tensors[f"{case}.out"]).abs().max() < 2e-6


def test_published_length_matches_golden_in_both_precisions(golden: Path, device: torch.device) -> None:
    tensors = load_file(golden / "audio/resample.safetensors")
    samples, index = real_input(golden), tensors["real.out_index"]
    single = resample_fourier(samples.to(device)).cpu()
    assert single.shape == (2, 441_000)
    assert (single.T[index] - tensors["real.out_rows"]).abs().max() < 2e-6
    double = resample_fourier(samples.double().to(device)).cpu()
    assert (double.T[index] - tensors["real.out_rows_f64"]).abs().max() < 1e-12


@pytest.mark.parametrize("ratio", [Fraction(441, 512), Fraction(3, 2), Fraction(1), Fraction(1, 7)])
@pytest.mark.parametrize("length", [20, 21, 64, 97])
def test_any_ratio_equals_scipy(length: int, ratio: Fraction) -> None:
    scipy_signal = pytest.importorskip("scipy.signal")
    samples = torch.randn(2, length, dtype=torch.float64, generator=torch.Generator().manual_seed(length))
    actual = resample_fourier(samples, ratio)
    expected = scipy_signal.resample(samples.numpy(), int(length * ratio), axis=1)
    assert np.abs(actual.numpy() - expected).max() < 1e-12


def test_a_steady_tone_keeps_its_pitch_in_seconds() -> None:
    tone = torch.sin(2 * torch.pi * 1000 * torch.arange(51200, dtype=torch.float64) / 51200)
    expected = torch.sin(2 * torch.pi * 1000 * torch.arange(44100, dtype=torch.float64) / 44100)
    assert (resample_fourier(tone[None])[0] - expected).abs().max() < 1e-9


def test_a_signal_too_short_to_keep_a_sample_is_refused() -> None:
    with pytest.raises(ContractError, match="leaves none"):
        resample_fourier(torch.zeros(2, 1))
