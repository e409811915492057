"""Architecture of the refiner; the defaults are the published values."""

from __future__ import annotations

from dataclasses import dataclass, fields

from magi2.errors import ConfigError


@dataclass(frozen=True)
class RefinerConfig:
    """Sizes of the refiner and of its attention windows.

    `mm_layers` are the layers with one set of weights per modality. `window_block` is the size of a block of video
    tokens and `window_radius` how many blocks a query sees on either side, both along (time, height, width).
    Raises ConfigError when a value is out of range or two values do not fit together.
    Source: MAGI-2 preview, refiner configuration.
    """

    num_layers: int = 30
    hidden_size: int = 4096
    head_dim: int = 128
    num_query_groups: int = 8
    video_in_channels: int = 48
    audio_in_channels: int = 64
    text_in_channels: int = 5120
    mm_layers: tuple[int, ...] = (0, 1, 28, 29)
    window_block: tuple[int, int, int] = (8, 4, 4)
    window_radius: tuple[int, int, int] = (2, 2, 2)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and value < 1:
                raise ConfigError(f"refiner {field.name} is {value}, must be at least 1")
        if self.head_dim % 8:
            raise ConfigError(f"refiner head_dim is {self.head_dim}, must be a multiple of 8 (rotary bands)")
        if self.hidden_size % self.head_dim:
            raise ConfigError(f"refiner hidden_size {self.hidden_size} is no multiple of head_dim {self.head_dim}")
        if self.num_heads % self.num_query_groups:
            raise ConfigError(
                f"refiner has {self.num_heads} heads, no multiple of {self.num_query_groups} query groups"
            )
        if len(set(self.mm_layers)) != len(self.mm_layers) or not set(self.mm_layers) <= set(range(self.num_layers)):
            raise ConfigError(f"refiner mm_layers {self.mm_layers} are not distinct layers of 0..{self.num_layers - 1}")
        if len(self.window_block) != 3 or min(self.window_block) < 1:
            raise ConfigError(f"refiner window_block is {self.window_block}, must be three sizes of at least 1")
        if len(self.window_radius) != 3 or min(self.window_radius) < 0:
            raise ConfigError(f"refiner window_radius is {self.window_radius}, must be three radii of at least 0")

    @property
    def num_heads(self) -> int:
        """Query heads; key-value heads are `num_query_groups`."""
        return self.hidden_size // self.head_dim

    @property
    def intermediate_size(self) -> int:
        """Inner width of the MLP: 8/3 of the hidden size, rounded down to a multiple of 4."""
        return self.hidden_size * 8 // 3 // 4 * 4
