"""Shapes, layouts and random weights of the shipped preview model for one device."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from magi2.models.preview.attention import Sequences
from magi2.models.preview.config import BF16, PreviewConfig, Weights
from magi2.models.preview.layer import Layer
from magi2.models.preview.layout import ClipLayout
from magi2.models.preview.mlp import MultiHeadMoe, SparseMlp
from magi2.models.preview.quantised import E4M3, Quantised, quantise

CONFIG = PreviewConfig()
DENSE, SPARSE = 0, CONFIG.moe_config.moe_layers[0]
AUDIO_ROWS, TEXT_ROWS = 250, 600
_ELEMENTS_AT_ONCE = 1 << 28  # of a quantised weight's numbers, while they are made


@dataclass(frozen=True)
class Clip:
    """A ten-second clip: latent cells of the video; both guidance branches are packed."""

    name: str
    cells: int

    @property
    def branch(self) -> int:
        """Tokens of one branch."""
        return self.cells + AUDIO_ROWS + TEXT_ROWS

    @property
    def tokens(self) -> int:
        """Tokens of both branches."""
        return 2 * self.branch


PREVIEW_CLIPS = {"272p": Clip("272p", 32 * 16 * 28), "540p": Clip("540p", 32 * 32 * 56)}


def make_layout(
    bounds: tuple[int, ...],
    modalities: list[tuple[int, ...]],
    device: torch.device,
    config: PreviewConfig = CONFIG,
) -> ClipLayout:
    """A layout whose sequences hold `modalities` (video, audio, text counts), with random rotary angles."""
    packed = torch.cat([torch.arange(3).repeat_interleave(torch.tensor(counts)) for counts in modalities])
    to_grouped = torch.argsort(packed, stable=True)
    angles = torch.rand(packed.numel(), config.head_dim // 8 * 3) * 6
    return ClipLayout(
        latent_size=(1, 1, 1),
        audio_length=1,
        num_branches=len(modalities),
        segments=(),
        group_sizes=tuple(sum(counts[m] for counts in modalities) for m in range(3)),
        sequences=Sequences(bounds, torch.tensor(bounds, dtype=torch.int32, device=device)),
        to_grouped=to_grouped.to(device),
        to_packed=torch.argsort(to_grouped).to(device),
        rope=torch.cat([angles.sin(), angles.cos()], dim=1).to(device),
        time_frequencies=torch.zeros(0, device=device),
        static_rows={},
    )


def clip_layout(clip: Clip, device: torch.device) -> ClipLayout:
    """Both branches of a clip."""
    counts = (clip.cells, AUDIO_ROWS, TEXT_ROWS)
    return make_layout(tuple(accumulate([clip.branch] * 2, initial=0)), [counts, counts], device)


def rank_layout(clip: Clip, device: torch.device) -> ClipLayout:
    """The share of one rank of eight, where all modalities occur; its attention is another rank's business."""
    tokens = -(-clip.tokens // 8)
    counts = (tokens - AUDIO_ROWS - TEXT_ROWS, AUDIO_ROWS, TEXT_ROWS)
    return make_layout((0, tokens), [counts], device)


def random_(module: nn.Module) -> None:
    """Fill weights on their device: matrices keep the size of their input, the rest varies mildly.

    Quantised weights are made a part at a time, so that no whole one is ever there in bf16.
    """
    tensors = module.state_dict(keep_vars=True)
    for name, tensor in tensors.items():
        values = tensor.detach()
        if values.dtype == E4M3:
            _random_quantised_(Quantised(values, tensors[f"{name}_scale"].detach()))
        elif name.endswith("_scale"):
            continue  # comes with its values
        elif name.endswith(("W_gate", "W_up", "W_down")):
            values.normal_(std=values.shape[1] ** -0.5)
        elif "mhc_phi" in name:
            values.normal_()
        elif "alpha" in name:
            values.fill_(1.0)
        elif values.dim() == 2 and "sinks" not in name and "mhc" not in name:
            values.normal_(std=values.shape[1] ** -0.5)
        else:
            values.normal_(std=0.02 if "router" in name else 0.1)


def _random_quantised_(weight: Quantised) -> None:
    """Quantise normal bf16 numbers into `weight`."""
    width = weight.values.shape[-1]
    rows, scales = weight.values.view(-1, width), weight.scales.view(-1)
    some = max(1, _ELEMENTS_AT_ONCE // width)
    for values, scale in zip(rows.split(some), scales.split(some), strict=True):
        numbers = torch.empty(values.shape, dtype=torch.bfloat16, device=values.device).normal_(std=width**-0.5)
        made = quantise(numbers)
        values.copy_(made.values)
        scale.copy_(made.scales)


def make_layer(
    index: int,
    device: torch.device,
    config: PreviewConfig = CONFIG,
    *,
    dtype: torch.dtype = torch.bfloat16,
    weights: Weights = BF16,
) -> Layer:
    """One layer of the architecture with random weights in their format."""
    with torch.device(device):
        layer = Layer(config, index, dtype=dtype, weights=weights)
    random_(layer)
    return layer.requires_grad_(False).eval()


def routed_experts(layer: Layer) -> MultiHeadMoe:
    """Those of a sparse layer."""
    assert isinstance(layer.mlp, SparseMlp)
    return layer.mlp.moe_mlp


def make_streams(tokens: int, device: torch.device, config: PreviewConfig = CONFIG) -> Tensor:
    """Random residual streams [N, n, c]."""
    return torch.randn(tokens, config.mhc_config.num_stream, config.hidden_size, device=device).bfloat16()
