"""From the decoder's time base to 44.1 kHz by plain Fourier resampling."""

# Shapes: C channels, N samples in, M samples out, F frequency bins of the input, G of the output

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from magi2.errors import ContractError

DELIVERY_RATIO = Fraction(441, 512)
"""44,100 written samples for 51,200 decoded ones."""


def resample_fourier(samples: Tensor, ratio: Fraction = DELIVERY_RATIO) -> Tensor:
    """`samples` [2, n] (or any [..., n]) at `ratio` times the rate: [2, floor(n ratio)], same dtype and device.

    The signal is taken as periodic: where its end differs from its beginning, they ring into each other. Neither a
    polyphase nor a windowed resampler gives these samples. Raises: ContractError when nothing would remain.
    Source: MAGI-2 preview inference code; equal to `scipy.signal.resample` without a window.
    """
    n = samples.shape[-1]
    m = n * ratio.numerator // ratio.denominator
    if m < 1:
        raise ContractError(f"resampling {n} samples by {ratio} leaves none")
    kept = min(n, m)
    bins_CF = torch.fft.rfft(samples, dim=-1)[..., : kept // 2 + 1]
    if kept % 2 == 0 and m != n:
        # The shorter length's Nyquist bin stands for both halves of the longer one's pair.
        nyquist = torch.ones(kept // 2 + 1, dtype=samples.dtype, device=samples.device)
        nyquist[-1] = 2.0 if m < n else 0.5
        bins_CF = bins_CF * nyquist
    bins_CG = torch.nn.functional.pad(bins_CF, (0, m // 2 - kept // 2))
    resampled: Tensor = torch.fft.irfft(bins_CG, n=m, dim=-1) * (m / n)
    return resampled
