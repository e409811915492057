"""Shape of a Wan2.2 video autoencoder; the defaults are the published network."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from magi2.errors import ConfigError
from magi2.models.video_vae.statistics import LATENT_CHANNELS


@dataclass(frozen=True)
class WanLevel:
    """One resolution level: widths at its two ends and what its resampler does."""

    in_channels: int
    out_channels: int
    resamples_space: bool
    resamples_time: bool

    @property
    def factors(self) -> tuple[int, int]:
        """(time, space) factors of the level's shortcut."""
        return 2 if self.resamples_time else 1, 2 if self.resamples_space else 1


@dataclass(frozen=True)
class WanVaeConfig:
    """Widths and depths of encoder and decoder.

    `channel_multipliers` run from fine to coarse. `temporal_downsample` has one flag per level but the coarsest: does
    the encoder halve time there? The decoder mirrors it. `encoder_blocks` are residual blocks per encoder level; a
    decoder level has one more. Raises: ConfigError when the numbers do not describe a network.
    """

    encoder_channels: int = 160
    decoder_channels: int = 256
    channel_multipliers: tuple[int, ...] = (1, 2, 4, 4)
    latent_channels: int = LATENT_CHANNELS
    encoder_blocks: int = 2
    temporal_downsample: tuple[bool, ...] = (False, True, True)

    def __post_init__(self) -> None:
        if self.latent_channels != LATENT_CHANNELS:
            raise ConfigError(
                f"latent_channels is {self.latent_channels}, the latent statistics have {LATENT_CHANNELS}"
            )
        if min((self.encoder_channels, self.decoder_channels, self.encoder_blocks, *self.channel_multipliers)) < 1:
            raise ConfigError(f"widths, multipliers and blocks must be at least 1: {self}")
        if len(self.temporal_downsample) != len(self.channel_multipliers) - 1:
            raise ConfigError(
                f"temporal_downsample has {len(self.temporal_downsample)} flags, "
                f"{len(self.channel_multipliers)} levels need {len(self.channel_multipliers) - 1}"
            )
        for level in self.encoder_levels:
            _check_divides(level, level.in_channels, level.out_channels)
        for level in self.decoder_levels[:-1]:
            _check_divides(level, level.out_channels, level.in_channels)

    @property
    def encoder_levels(self) -> tuple[WanLevel, ...]:
        """Encoder levels from fine to coarse; the last one does not resample."""
        widths = [self.encoder_channels * factor for factor in (1, *self.channel_multipliers)]
        return self._levels(widths, self.temporal_downsample)

    @property
    def decoder_levels(self) -> tuple[WanLevel, ...]:
        """Decoder levels from coarse to fine; the last one does not resample."""
        factors = self.channel_multipliers[::-1]
        widths = [self.decoder_channels * factor for factor in (factors[0], *factors)]
        return self._levels(widths, self.temporal_downsample[::-1])

    @property
    def temporal_stride(self) -> int:
        """Pixel frames per latent frame after the first one (4 as published)."""
        return 1 << sum(self.temporal_downsample)

    @property
    def spatial_stride(self) -> int:
        """Pixels per latent cell along each side (16 as published)."""
        return 1 << len(self.channel_multipliers)

    def _levels(self, widths: list[int], halves_time: tuple[bool, ...]) -> tuple[WanLevel, ...]:
        ends = list(pairwise(widths))
        inner = [WanLevel(a, b, True, in_time) for (a, b), in_time in zip(ends[:-1], halves_time, strict=True)]
        return (*inner, WanLevel(*ends[-1], False, False))


def _check_divides(level: WanLevel, fine_channels: int, coarse_channels: int) -> None:
    time_factor, space_factor = level.factors
    gathered = fine_channels * time_factor * space_factor**2
    if gathered % coarse_channels:
        raise ConfigError(f"a shortcut cannot spread {gathered} channels over {coarse_channels}: {level}")
