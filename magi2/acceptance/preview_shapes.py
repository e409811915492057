"""Shapes, layouts and random weights of the shipped preview model for one device."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from magi2.models.preview.attention import Sequences
from magi2.models.preview.config import PreviewConfig
from magi2.models.preview.layer import Layer
from magi2.models.preview.layout import ClipLayout
from magi2.models.preview.mlp import MultiHeadMoe, SparseMlp

CONFIG = PreviewConfig()
DENSE, SPARSE = 0, CONFIG.moe_config.moe_layers[0]
AUDIO_ROWS, TEXT_ROWS = 250, 600


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


def make_layout(bounds: tuple[int, ...], modalities: list[tuple[int, ...]], device: torch.device) -> ClipLayout:
    """A layout whose sequences hold `modalities` (video, audio, text counts), with random rotary angles."""
    packed = torch.cat([torch.arange(3).repeat_interleave(torch.tensor(counts)) for counts in modalities])
    to_grouped = torch.argsort(packed, stable=True)
    angles = torch.rand(packed.numel(), CONFIG.head_dim // 8 * 3) * 6
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
    """Fill weights on their device: matrices keep the size of their input, the rest varies mildly."""
    for name, tensor in module.state_dict(keep_vars=True).items():
        values = tensor.detach()
        if name.endswith(("W_gate", "W_up", "W_down")):
            values.normal_(std=values.shape[1] ** -0.5)
        elif "mhc_phi" in name:
            values.normal_()
        elif "alpha" in name:
            values.fill_(1.0)
        elif values.dim() == 2 and "sinks" not in name and "mhc" not in name:
            values.normal_(std=values.shape[1] ** -0.5)
        else:
            values.normal_(std=0.02 if "router" in name else 0.1)


def make_layer(index: int, device: torch.device) -> Layer:
    """One layer of the shipped architecture with random bf16 weights."""
    with torch.device(device):
        layer = Layer(CONFIG, index, dtype=torch.bfloat16)
    random_(layer)
    return layer.requires_grad_(False).eval()


def routed_experts(layer: Layer) -> MultiHeadMoe:
    """Those of a sparse layer."""
    assert isinstance(layer.mlp, SparseMlp)
    return layer.mlp.moe_mlp


def make_streams(tokens: int, device: torch.device) -> Tensor:
    """Random residual streams [N, n, c]."""
    return torch.randn(tokens, CONFIG.mhc_config.num_stream, CONFIG.hidden_size, device=device).bfloat16()
