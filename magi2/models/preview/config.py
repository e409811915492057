"""Architecture of the preview transformer, under the published field names; the defaults are the shipped values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from magi2.errors import ConfigError

Weights = Literal["bf16", "fp8_experts", "fp8"]
"""How the large products' weights are held: as published, or e4m3 for the routed experts or for all of them."""
BF16: Weights = "bf16"
FP8_EXPERTS: Weights = "fp8_experts"
FP8: Weights = "fp8"
SCALE_SUFFIX = "_scale"
"""What the name of a tensor of scales has behind that of the tensor whose values it multiplies."""
_SERVES: dict[Weights, tuple[Weights, ...]] = {
    BF16: (BF16, FP8_EXPERTS, FP8),
    FP8_EXPERTS: (FP8_EXPERTS, FP8),
    FP8: (FP8,),
}


def stored_weights(names: Iterable[str]) -> Weights:
    """The format of a checkpoint that holds tensors of these names."""
    scaled = [name for name in names if name.endswith(SCALE_SUFFIX)]
    if any(name.endswith(f".weight{SCALE_SUFFIX}") for name in scaled):
        return FP8
    return FP8_EXPERTS if scaled else BF16


def weights_objection(stored: Weights, wanted: Weights) -> str | None:
    """Why weights stored in one format cannot be held in another: what is lost does not come back."""
    if wanted in _SERVES[stored]:
        return None
    usable = " or ".join(f"compute.weights={name}" for name in _SERVES[stored])
    return f"weights are stored as {stored}, compute.weights is {wanted}: set {usable}, or take the published weights"


def _require(holds: bool, name: str, value: object, demand: str) -> None:
    if not holds:
        raise ConfigError(f"preview architecture: {name} is {value!r}, it must be {demand}")


@dataclass(frozen=True)
class AttnGating:
    """One sigmoid gate per token and head after attention."""

    enable: bool = True

    def __post_init__(self) -> None:
        _require(self.enable, "attn_gating.enable", self.enable, "true")


@dataclass(frozen=True)
class AttnSinks:
    """Extra logits per head that take part in the softmax and have no value."""

    enable: bool = True
    sink_token_num: int = 1

    def __post_init__(self) -> None:
        _require(self.enable, "attn_sinks.enable", self.enable, "true")
        _require(self.sink_token_num >= 1, "attn_sinks.sink_token_num", self.sink_token_num, "at least 1")


@dataclass(frozen=True)
class MhcConfig:
    """Hyper-connections: `num_stream` residual streams mixed by a doubly stochastic matrix per token."""

    enable: bool = True
    num_stream: int = 4
    alpha_init: float = 0.01

    def __post_init__(self) -> None:
        _require(self.enable, "mhc_config.enable", self.enable, "true")
        _require(self.num_stream >= 1, "mhc_config.num_stream", self.num_stream, "at least 1")


@dataclass(frozen=True)
class MoeConfig:
    """Multi-head mixture of experts; `num_experts` counts per MoE head, `top_k` per token and head."""

    num_heads: int = 12
    num_experts: int = 256
    top_k: int = 6
    score_func: str = "sigmoid"
    route_norm: bool = True
    route_scale: float = 4.9
    moe_layers: tuple[int, ...] = tuple(range(2, 38))
    expert_intermediate_size: int = 1280
    shared_expert_intermediate_size: int = 1280
    modality_specific_expert_intermediate_size: int = 1280
    split_merge_intermediate_size: int | None = None

    def __post_init__(self) -> None:
        _require(self.score_func == "sigmoid", "moe_config.score_func", self.score_func, "'sigmoid'")
        _require(self.num_heads >= 1, "moe_config.num_heads", self.num_heads, "at least 1")
        in_range = 1 <= self.top_k <= self.num_experts
        _require(in_range, "moe_config.top_k", self.top_k, f"between 1 and num_experts {self.num_experts}")


@dataclass(frozen=True)
class DataProxyConfig:
    """How latents become tokens. The last four fields are published, and nothing reads them."""

    t_patch_size: int = 1
    patch_size: int = 1
    spatial_rope_interpolation: str = "extra"
    add_time_token: bool = False
    time_channel_dim: int = 64
    audio_latent_fps: float = 25.0
    time_aligned_rope: bool = False
    time_pos_fps: float = 3.125
    vae_first_latent_is_image: bool = True
    video_fps: float = 25.0

    def __post_init__(self) -> None:
        _require(self.t_patch_size == 1, "data_proxy.t_patch_size", self.t_patch_size, "1")
        _require(self.patch_size == 1, "data_proxy.patch_size", self.patch_size, "1")
        mode = self.spatial_rope_interpolation
        _require(mode in ("extra", "inter"), "data_proxy.spatial_rope_interpolation", mode, "'extra' or 'inter'")
        _require(not self.add_time_token, "data_proxy.add_time_token", self.add_time_token, "false")
        _require(self.time_channel_dim >= 0, "data_proxy.time_channel_dim", self.time_channel_dim, "0 or more")


@dataclass(frozen=True)
class PreviewConfig:
    """The preview transformer: the fields of the published `arch_config`, and `data_proxy_config` as `data_proxy`.

    Raises: ConfigError naming field, value and demand when the fields do not describe a model that can be built.
    """

    num_layers: int = 40
    hidden_size: int = 3072
    head_dim: int = 128
    num_query_groups: int = 24
    video_in_channels: int = 48
    audio_in_channels: int = 64
    text_in_channels: int = 5120
    params_dtype: str = "bfloat16"
    intermediate_factor: float = 4.0
    mm_layers: tuple[int, ...] = (0, 1, 38, 39)
    activation_type: str = "swiglu7"
    layer_activation_types: tuple[str, ...] = ()
    attn_softcap: float = -1.0
    attn_gating: AttnGating = field(default_factory=AttnGating)
    attn_sinks: AttnSinks = field(default_factory=AttnSinks)
    mhc_config: MhcConfig = field(default_factory=MhcConfig)
    moe_config: MoeConfig = field(default_factory=MoeConfig)
    data_proxy: DataProxyConfig = field(default_factory=DataProxyConfig)

    @property
    def num_heads(self) -> int:
        """Query heads of the attention."""
        return self.hidden_size // self.head_dim

    @property
    def stream_width(self) -> int:
        """Channels of one token over all residual streams."""
        return self.mhc_config.num_stream * self.hidden_size

    @property
    def intermediate_size(self) -> int:
        """Width of the dense MLP: two thirds of `intermediate_factor` hidden sizes, floored to a multiple of 128."""
        return math.floor(int(self.hidden_size * self.intermediate_factor * 2 / 3) / 128) * 128

    @property
    def split_merge_size(self) -> int:
        """Channels that the MoE heads share between the split and the merge linear."""
        return self.moe_config.split_merge_intermediate_size or self.hidden_size

    def weight_sets(self, layer: int) -> int:
        """3 where attention, dense MLP and hyper-connection norm have weights per modality, else 1."""
        return 3 if layer in self.mm_layers else 1

    def __post_init__(self) -> None:
        _require(self.num_layers >= 1, "num_layers", self.num_layers, "at least 1")
        for name, layers in (("mm_layers", self.mm_layers), ("moe_config.moe_layers", self.moe_config.moe_layers)):
            in_range = all(0 <= layer < self.num_layers for layer in layers) and len(set(layers)) == len(layers)
            _require(in_range, name, layers, f"distinct layers between 0 and {self.num_layers - 1}")
        _require(self.params_dtype == "bfloat16", "params_dtype", self.params_dtype, "'bfloat16'")
        _require(self.activation_type == "swiglu7", "activation_type", self.activation_type, "'swiglu7'")
        _require(not self.layer_activation_types, "layer_activation_types", self.layer_activation_types, "empty")
        self._check_widths()

    def _check_widths(self) -> None:
        _require(self.head_dim >= 8 and self.head_dim % 8 == 0, "head_dim", self.head_dim, "a multiple of 8")
        whole_heads = self.hidden_size > 0 and self.hidden_size % self.head_dim == 0
        _require(whole_heads, "hidden_size", self.hidden_size, f"a multiple of head_dim {self.head_dim}")
        groups = self.num_query_groups
        divides = groups >= 1 and self.num_heads % groups == 0
        _require(divides, "num_query_groups", groups, f"a divisor of the {self.num_heads} attention heads")
        _require(self.intermediate_size >= 128, "intermediate_factor", self.intermediate_factor, "larger")
        width, heads = self.split_merge_size, self.moe_config.num_heads
        name = "moe_config.split_merge_intermediate_size"
        _require(width % heads == 0, name, width, f"a multiple of the {heads} MoE heads")
        width, limit = self.data_proxy.time_channel_dim, self.stream_width
        _require(width <= limit, "data_proxy.time_channel_dim", width, f"at most the {limit} channels of a token")
