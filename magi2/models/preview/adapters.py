"""Between latents and residual streams: embedders with time channels on one side, velocity heads on the other.

Source: MAGI-2 preview inference code. Everything here computes in fp32.
"""

# Shapes: n residual streams, c hidden size, C channels, W time channels, R token rows

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from magi2.models.layers import rms_norm
from magi2.models.preview.config import PreviewConfig
from magi2.models.preview.grouped import GroupedRMSNorm
from magi2.models.preview.layout import Source

_BAND_BASE = 10000.0
_NORM_ROWS = 4096


class Rope(nn.Module):
    """The rotary bands [d/8] fp32: a buffer, because the checkpoint holds them and its values count."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        count = head_dim // 8
        self.bands: Tensor
        # On the CPU even when the model is built on no device: there, `arange` imports torch's compiler for seconds.
        steps = torch.arange(count, dtype=torch.float32, device="cpu")
        self.register_buffer("bands", _BAND_BASE ** (-steps / count))


class PreAdapter(nn.Module):
    """Embedders straight to the channels of all streams."""

    def __init__(self, config: PreviewConfig) -> None:
        super().__init__()
        self.video_embedder = nn.Linear(config.video_in_channels, config.stream_width)
        self.audio_embedder = nn.Linear(config.audio_in_channels, config.stream_width)
        self.text_embedder = nn.Linear(config.text_in_channels, config.stream_width)
        self.rope = Rope(config.head_dim)

    def forward(self, source: Source, features: Tensor, time_row: Tensor, dtype: torch.dtype) -> Tensor:
        """Embedded tokens [R, n*c] in `dtype` of `features` [R, C] fp32.

        `time_row`, [W] or one for each token [R, W], takes the place of the first W channels. Images share the video's
        embedder, padding the text's.
        """
        rows: Tensor = self._embedder(source)(features)
        channels = time_row.to(dtype).expand(rows.shape[0], -1)
        return torch.cat([channels, rows[:, time_row.shape[-1] :].to(dtype)], dim=1)

    def _embedder(self, source: Source) -> nn.Linear:
        if source in (Source.VIDEO, Source.IMAGE):
            return self.video_embedder
        return self.audio_embedder if source is Source.AUDIO else self.text_embedder


class PostAdapter(nn.Module):
    """Velocity heads that read the channels of all streams."""

    def __init__(self, config: PreviewConfig) -> None:
        super().__init__()
        self.final_norm_video = GroupedRMSNorm(config.stream_width, sets=1)
        self.final_norm_audio = GroupedRMSNorm(config.stream_width, sets=1)
        self.final_linear_video = nn.Linear(config.stream_width, config.video_in_channels, bias=False)
        self.final_linear_audio = nn.Linear(config.stream_width, config.audio_in_channels, bias=False)

    def video(self, rows: Tensor) -> Tensor:
        """Velocities [R, C] fp32 of video tokens [R, n*c]."""
        return F.linear(_normed(rows, self.final_norm_video.weight), self.final_linear_video.weight)

    def audio(self, rows: Tensor) -> Tensor:
        """Velocities [R, C] fp32 of audio tokens [R, n*c]."""
        return F.linear(_normed(rows, self.final_norm_audio.weight), self.final_linear_audio.weight)


def _normed(rows: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm [R, n*c] fp32 of `rows`, some at a time: three copies of all in fp32 would be a step's fullest moment."""
    if torch.is_grad_enabled():
        return rms_norm(rows.float(), weight)
    out = torch.empty(rows.shape, device=rows.device)
    for part, place in zip(torch.split(rows, _NORM_ROWS), torch.split(out, _NORM_ROWS), strict=True):
        place.copy_(rms_norm(part.float(), weight))
    return out
