"""The turbo decoder: normalised latents to pixels, window by window."""

# Shapes: B clips, T latent frames, h x w latent cells, F pixel frames, H = 16h rows, W = 16w columns (as published)

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from magi2.errors import ContractError
from magi2.models.turbo_vae.config import TurboDecoderConfig
from magi2.models.turbo_vae.frames import convolve
from magi2.models.turbo_vae.layers import Blocks, Conv, Stage, normalise_channels
from magi2.models.turbo_vae.windows import Window, plan_windows
from magi2.models.video_vae.layout import FrameConv, unpack
from magi2.models.video_vae.statistics import denormalise


class TurboNetwork(nn.Module):
    """One window of denormalised latents [B,48,T,h,w] to RGB frames [B,3,F,H,W].

    F is 4T - 3 for a first window and 4T for any other.
    """

    def __init__(self, config: TurboDecoderConfig) -> None:
        super().__init__()
        eps, stages = config.resnet_norm_eps, config.stages
        deep, shallow = stages[0].in_channels, stages[-1].out_channels
        self.conv_in = Conv(config.latent_channels, deep, (3, 3, 3))
        self.mid_block = Blocks(
            deep, config.middle_blocks, depthwise_kernel=config.middle_depthwise_kernel, shortcut_eps=eps
        )
        self.up_blocks = nn.ModuleList(Stage(stage, shortcut_eps=eps) for stage in stages)
        if config.use_unpatchify:
            self.upsampler2d_1 = None
            self.conv_out = Conv(shallow, config.out_channels * 4, (3, 3, 3))
        else:
            self.upsampler2d_1 = nn.Sequential(OrderedDict(conv=FrameConv(shallow)))
            self.conv_out = Conv(shallow // 4, config.out_channels, (3, 3, 3))

    def forward(self, latents: Tensor, is_first_window: bool) -> Tensor:
        x = convolve(self.conv_in, latents)
        x = self.mid_block(x)
        for stage in self.up_blocks:
            x = stage(x, is_first_window)
        if self.upsampler2d_1 is None:
            return unpack(convolve(self.conv_out, x, prepare=_last_norm))
        # Unlike `unpack`, this shuffle has the row offset as the slower index.
        x = F.pixel_shuffle(self.upsampler2d_1(_last_norm(x)).transpose(1, 2), 2).transpose(1, 2)
        return convolve(self.conv_out, x, prepare=_last_norm)


def _last_norm(x: Tensor) -> Tensor:
    return normalise_channels(x, activation=F.silu)


class TurboDecoder(nn.Module):
    """The decoder that every clip goes through.

    Parameters have the published names (`decoder.*`) and `compute_dtype`: bf16 as published, fp32 for exact tests.
    Source: MAGI-2 preview inference code, turbo decoder.
    """

    def __init__(self, config: TurboDecoderConfig, *, compute_dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.config = config
        self.decoder = TurboNetwork(config).to(compute_dtype)

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype of parameters, activations and decoded frames."""
        return self.decoder.conv_in.conv.weight.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.decoder.conv_in.conv.weight.device

    @property
    def spatial_stride(self) -> int:
        """Pixels along each side of a latent's place."""
        doublings = sum(stage.doubles_space for stage in self.config.stages)
        return int(self.config.patch_size * 2**doublings)

    def plan(self, latent_frames: int) -> tuple[Window, ...]:
        """The windows of a clip of `latent_frames` latents, see `plan_windows`."""
        config = self.config
        return plan_windows(latent_frames, config.first_chunk_size, config.step_size, config.temporal_compression_ratio)

    def decode(self, latents: Tensor) -> Iterator[Tensor]:
        """Yields the RGB frames of normalised `latents` [B,48,T,h,w] in order of time, [B,3,f,16h,16w] a window.

        4T - 3 frames in all, nominally in [-1,1] but NOT clamped, in `compute_dtype`. A window is decoded when it is
        asked for, so memory does not grow with the clip. Gradients flow to parameters that ask for them.
        Measured on an H200 in bf16: a middle window of the published network at 1088x1920 takes 1.0 s and 13.7 GiB.
        Raises: ContractError on another layout.
        """
        self.check(latents)
        return (self.decode_window(latents, window) for window in self.plan(latents.shape[2]))

    def decode_window(self, latents: Tensor, window: Window) -> Tensor:
        """The frames [B,3,window.frame_count,16h,16w] that `window` adds to the clip of `latents` [B,48,T,h,w].

        `latents` are the whole clip's, on any device; the result is the same bits as in `decode`, whoever asks.
        Raises: ContractError on another layout or a window of another clip.
        """
        self.check(latents)
        if window not in self.plan(latents.shape[2]):
            raise ContractError(f"{window} is not in the plan of a clip of {latents.shape[2]} latents")
        seen = latents[:, :, window.start : window.stop]
        missing = window.stop - window.start - seen.shape[2]
        seen = torch.cat([seen, seen[:, :, -1:].expand(-1, -1, missing, -1, -1)], dim=2)
        frames: Tensor = self.decoder(self.denormalise(seen), window.is_first)
        return frames[:, :, window.skip : window.skip + window.frame_count]

    def decode_first(self, latents: Tensor) -> Tensor:
        """The first frame [B,3,1,16h,16w] from its own latent alone: near what `decode` yields, and no more than that.

        Raises: ContractError on another layout.
        """
        self.check(latents)
        frame: Tensor = self.decoder(self.denormalise(latents[:, :, :1]), True)
        return frame

    def denormalise(self, latents: Tensor) -> Tensor:
        """Normalised latents as the network takes them, on its device: rounded to `compute_dtype` before and after."""
        rounded = latents.to(device=self.device, dtype=self.compute_dtype)
        return denormalise(rounded).to(self.compute_dtype)

    def check(self, latents: Tensor) -> None:
        """Raises: ContractError when `latents` are not [B,48,T,h,w]."""
        channels = self.config.latent_channels
        if latents.ndim != 5 or latents.shape[1] != channels or latents.numel() == 0:
            raise ContractError(f"the turbo decoder takes latents [B,{channels},T,h,w], got {tuple(latents.shape)}")
