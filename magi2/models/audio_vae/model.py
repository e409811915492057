"""Oobleck decoder: audio latents to a stereo waveform on the decoder's own time base (51,200 samples per second).

Modules carry the published tensor names; convolutions hold the effective weight, their weight norm is folded when
the checkpoint is read. Source: Stable Audio Open 1.0 autoencoder, as used by the MAGI-2 preview inference code.
"""

# Shapes: B batch, A latent rows (25 per second), Z latent channels, C channels, N samples

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from magi2.errors import ContractError
from magi2.models.audio_vae.config import AudioVaeConfig, OobleckConfig

DILATIONS = (1, 3, 9)


class Snake(nn.Module):
    """`x + sin(x e^alpha)^2 / (e^beta + 1e-9)`, one alpha and one beta per channel, both stored as logarithms."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x_BCN: Tensor) -> Tensor:
        frequency_C1 = self.alpha.exp()[:, None]
        amplitude_C1 = 1.0 / (self.beta.exp() + 1e-9)[:, None]
        return x_BCN + amplitude_C1 * torch.sin(x_BCN * frequency_C1).square()


class ResidualUnit(nn.Module):
    """A dilated convolution over 7 taps and one over a single tap, each behind an activation, added to the input."""

    def __init__(self, channels: int, *, dilation: int, use_snake: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            activation(channels, use_snake),
            nn.Conv1d(channels, channels, 7, dilation=dilation, padding=3 * dilation),
            activation(channels, use_snake),
            nn.Conv1d(channels, channels, 1),
        )

    def forward(self, x_BCN: Tensor) -> Tensor:
        return x_BCN + self.layers(x_BCN)  # type: ignore[no-any-return]


class DecoderBlock(nn.Module):
    """Up-sampling by `stride`, then three residual units. Length (n-1)s - 2 ceil(s/2) + 2s, which is n s for even s."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int, config: OobleckConfig) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            activation(in_channels, config.use_snake),
            _upsample(in_channels, out_channels, stride, nearest=config.use_nearest_upsample),
            *(ResidualUnit(out_channels, dilation=d, use_snake=config.use_snake) for d in DILATIONS),
        )

    def forward(self, x_BCN: Tensor) -> Tensor:
        return self.layers(x_BCN)  # type: ignore[no-any-return]


class OobleckDecoder(nn.Module):
    """[B, Z, A] latents to a [B, C, N] waveform. The largest stride comes first: the configured order is reversed."""

    def __init__(self, config: OobleckConfig) -> None:
        super().__init__()
        widths = config.widths
        blocks = [
            DecoderBlock(widths[i], widths[i - 1], stride=config.strides[i - 1], config=config)
            for i in range(len(config.strides), 0, -1)
        ]
        self.layers = nn.Sequential(
            nn.Conv1d(config.latent_dim, widths[-1], 7, padding=3),
            *blocks,
            activation(widths[0], config.use_snake),
            nn.Conv1d(widths[0], config.io_channels, 7, padding=3, bias=False),
            nn.Tanh() if config.final_tanh else nn.Identity(),
        )

    def forward(self, latents_BZA: Tensor) -> Tensor:
        return self.layers(latents_BZA)  # type: ignore[no-any-return]


class AudioDecoder(nn.Module):
    """The decoding half of the autoencoder; the bottleneck's decode is the identity and has no tensors."""

    def __init__(self, config: AudioVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.decoder = OobleckDecoder(config.decoder)

    def forward(self, latents_BZA: Tensor) -> Tensor:
        """[B, 64, A] latents to [B, 2, N] samples, not clipped."""
        samples_BCN: Tensor = self.decoder(latents_BZA)
        return torch.tanh(samples_BCN) if self.config.soft_clip else samples_BCN

    def decode(self, latents: Tensor) -> Tensor:
        """The waveform of one clip: latents [1, A, 64] fp32 to samples [2, n] fp32, n = 2048 A as published.

        Samples are on the decoder's time base of 51,200 per second (`resample_fourier` brings them to 44,100) and
        may exceed full scale. Callers switch TensorFloat-32 off: it would add an error only 60 dB below the sound.
        Raises: ContractError when the latents have another shape or dtype.
        """
        width = self.config.decoder.latent_dim
        if latents.dim() != 3 or latents.shape[0] != 1 or latents.shape[2] != width or latents.shape[1] < 1:
            raise ContractError(f"audio latents: shape {tuple(latents.shape)}, want [1, A, {width}]")
        if latents.dtype != torch.float32:
            raise ContractError(f"audio latents: dtype {latents.dtype}, want torch.float32")
        samples_BCN: Tensor = self(latents.transpose(1, 2))
        return samples_BCN[0]


def activation(channels: int, use_snake: bool) -> nn.Module:
    """Snake, or ELU where the configuration asks for it."""
    return Snake(channels) if use_snake else nn.ELU()


def _upsample(in_channels: int, out_channels: int, stride: int, *, nearest: bool) -> nn.Module:
    if nearest:
        return nn.Sequential(
            nn.Upsample(scale_factor=stride, mode="nearest"),
            nn.Conv1d(in_channels, out_channels, 2 * stride, padding="same", bias=False),
        )
    return nn.ConvTranspose1d(in_channels, out_channels, 2 * stride, stride=stride, padding=math.ceil(stride / 2))
