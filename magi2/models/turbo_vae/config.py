"""Shape of a turbo decoder, under the key names of its published JSON file."""

from __future__ import annotations

import json
import logging
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from magi2.errors import CheckpointError, ConfigError
from magi2.models.video_vae.statistics import LATENT_CHANNELS

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TurboStage:
    """One up stage in the order the decoder runs them."""

    in_channels: int
    out_channels: int
    blocks: int
    doubles_space: bool
    doubles_time: bool
    depthwise_kernel: int | None


@dataclass(frozen=True, kw_only=True)
class TurboDecoderConfig:
    """The published keys. Lists run from shallow to deep, the decoder runs deep to shallow: see `stages`.

    `decoder_layers_per_block` and `decoder_is_dw_conv` have one entry more than there are stages, the last one for
    the middle block. The five lists must be in the file; other keys missing there have the released class's defaults.
    Raises: ConfigError when the lists do not fit together or the file asks for a network that is not the turbo decoder.
    """

    decoder_block_out_channels: tuple[int, ...]
    decoder_layers_per_block: tuple[int, ...]
    decoder_spatio_temporal_scaling: tuple[bool, ...]
    decoder_spatio_only: tuple[bool, ...]
    decoder_is_dw_conv: tuple[bool, ...]
    decoder_dw_kernel_size: int = 3
    decoder_causal: bool = False
    latent_channels: int = LATENT_CHANNELS
    out_channels: int = 3
    patch_size: int = 4
    patch_size_t: int = 1
    use_unpatchify: bool = False
    resnet_norm_eps: float = 1e-6
    first_chunk_size: int = 3
    step_size: int = 5
    temporal_compression_ratio: int = 4

    def __post_init__(self) -> None:
        for name, wanted in (
            ("decoder_causal", False),
            ("latent_channels", LATENT_CHANNELS),
            ("patch_size", 2),
            ("patch_size_t", 1),
        ):
            if getattr(self, name) != wanted:
                raise ConfigError(f"turbo decoder: {name} is {getattr(self, name)}, only {wanted} is supported")
        self._check_lengths()
        if self.first_chunk_size < 1 or self.step_size < 1:
            sizes = f"first_chunk_size {self.first_chunk_size}, step_size {self.step_size}"
            raise ConfigError(f"turbo decoder: {sizes}: both must be at least 1")
        if self.decoder_dw_kernel_size % 2 == 0:
            raise ConfigError(f"turbo decoder: decoder_dw_kernel_size is {self.decoder_dw_kernel_size}, must be odd")
        expansion = 2 ** sum(stage.doubles_time for stage in self.stages)
        if expansion != self.temporal_compression_ratio:
            raise ConfigError(
                f"turbo decoder: stages multiply time by {expansion}, "
                f"temporal_compression_ratio is {self.temporal_compression_ratio}"
            )

    def _check_lengths(self) -> None:
        stages = len(self.decoder_block_out_channels)
        for name, wanted in (
            ("decoder_layers_per_block", stages + 1),
            ("decoder_spatio_temporal_scaling", stages),
            ("decoder_spatio_only", stages),
            ("decoder_is_dw_conv", stages + 1),
        ):
            found = len(getattr(self, name))
            if found != wanted:
                raise ConfigError(f"turbo decoder: {name} has {found} entries, {stages} stages need {wanted}")
        if stages < 1 or min((*self.decoder_block_out_channels, *self.decoder_layers_per_block)) < 1:
            raise ConfigError("turbo decoder: there must be a stage, and widths and layer counts of at least 1")

    @classmethod
    def from_json(cls, path: Path) -> TurboDecoderConfig:
        """The configuration in a published JSON file; keys that do not matter for decoding are ignored.

        Raises: CheckpointError when the file is missing or not JSON; ConfigError naming a key that is missing, has the
        wrong type, or has a value that this decoder does not support.
        """
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{path}: unreadable turbo decoder configuration: {error}") from error
        if not isinstance(content, dict):
            raise ConfigError(f"{path}: holds a {type(content).__name__}, not an object of settings")
        hints = get_type_hints(cls)
        ignored = sorted(content.keys() - hints.keys())
        if ignored:
            logger.debug("%s: ignored %s", path, ", ".join(ignored))
        values = {name: _typed(content[name], hints[name], f"{path}: {name}") for name in hints if name in content}
        missing = [field.name for field in fields(cls) if field.default is MISSING and field.name not in values]
        if missing:
            raise ConfigError(f"{path}: {missing[0]} is missing")
        try:
            return cls(**values)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    @property
    def middle_blocks(self) -> int:
        """Residual blocks before the first stage."""
        return self.decoder_layers_per_block[-1]

    @property
    def middle_depthwise_kernel(self) -> int | None:
        """Kernel size of the middle block's depthwise convolutions; None when they are ordinary ones."""
        return self.decoder_dw_kernel_size if self.decoder_is_dw_conv[-1] else None

    @property
    def stages(self) -> tuple[TurboStage, ...]:
        """The up stages, deepest first."""
        widths = self.decoder_block_out_channels[::-1]
        listed = zip(
            (widths[0], *widths),
            widths,
            self.decoder_layers_per_block[-2::-1],
            self.decoder_spatio_temporal_scaling[::-1],
            self.decoder_spatio_only[::-1],
            self.decoder_is_dw_conv[-2::-1],
            strict=False,
        )
        return tuple(
            TurboStage(
                in_channels=in_channels,
                out_channels=out_channels,
                blocks=blocks,
                doubles_space=scales,
                doubles_time=scales and not space_only,
                depthwise_kernel=self.decoder_dw_kernel_size if depthwise else None,
            )
            for in_channels, out_channels, blocks, scales, space_only, depthwise in listed
        )


def _typed(value: Any, kind: Any, place: str) -> Any:
    """`value` as a field of type `kind`: lists become tuples, whole numbers may stand for floats."""
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_typed(entry, get_args(kind)[0], place) for entry in value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ConfigError(f"{place} is {value!r}, must be of type {kind.__name__ if isinstance(kind, type) else kind}")
    return value


PUBLISHED_TURBO_DECODER = TurboDecoderConfig(
    decoder_block_out_channels=(64, 128, 256, 512),
    decoder_layers_per_block=(2, 2, 2, 3, 3),
    decoder_spatio_temporal_scaling=(False, True, True, True),
    decoder_spatio_only=(False, True, False, False),
    decoder_is_dw_conv=(False, False, False, False, False),
    decoder_dw_kernel_size=5,
    patch_size=2,
    use_unpatchify=True,
    first_chunk_size=7,
    step_size=7,
)
"""TurboV3-Wan22-TinyShallow_7_7 as public ports of the release report it."""

TINY_TURBO_DECODER = TurboDecoderConfig(
    decoder_block_out_channels=(12, 12, 12, 16),
    decoder_layers_per_block=(1, 1, 1, 1, 1),
    decoder_spatio_temporal_scaling=(False, True, True, True),
    decoder_spatio_only=(False, True, False, False),
    decoder_is_dw_conv=(False, False, False, False, False),
    decoder_dw_kernel_size=5,
    patch_size=2,
    use_unpatchify=True,
    first_chunk_size=7,
    step_size=7,
)
"""The published structure at toy widths, for random checkpoints."""
