"""Classifier-free guidance of the two velocities, with every option that the preview model was released with.

Source: MAGI-2 preview inference code, sampler (guidance scales per modality, trick, dynamic, skimmed, rescale).
"""

# Shapes: the model's velocities are [2, ...], index 0 conditional and 1 unconditional; C channels, T latent frames,
# H x W latent cells, A audio latents. Video [1, C, T, H, W], audio [1, A, C].

from __future__ import annotations

import torch
from torch import Tensor

from magi2.sampling.guidance_config import GuidanceConfig

VIDEO_STD_DIMS = (2, 3, 4)
AUDIO_STD_DIMS = (1,)


class Guidance:
    """Guidance of one clip: scales are worked out once, on the device of the latents, so that no step waits for them.

    `latent_frames` is T. Nothing here reads device data back to the host.
    """

    def __init__(self, config: GuidanceConfig, *, latent_frames: int, device: torch.device | str) -> None:
        self.config = config
        # Two sets because dynamic guidance switches once; scalar scales stay on the host, where no copy is needed.
        self._early, self._late = (
            scale if scale.dim() == 0 else scale.to(device)
            for scale in (_video_scale(config, latent_frames, is_late) for is_late in (False, True))
        )
        self._audio_scale = torch.tensor(config.audio_txt_guidance_scale, dtype=torch.float32, device="cpu")

    def video_scale(self, timestep: int) -> Tensor:
        """The fp32 scale at an integer timestep: 0-dim, or [1, 1, T, 1, 1] when the trick makes it depend on frames."""
        return self._late if timestep < self.config.dynamic_cfg_start_t else self._early

    def video(self, velocity: Tensor, latents: Tensor, timestep: int) -> Tensor:
        """Guided video velocity [1, C, T, H, W] from the model's pair [2, C, T, H, W] and the current latents."""
        return _guide(self.config, velocity, latents, self.video_scale(timestep), VIDEO_STD_DIMS)

    def audio(self, velocity: Tensor, latents: Tensor) -> Tensor:
        """Guided audio velocity [1, A, C] from the model's pair [2, A, C] and the current latents."""
        return _guide(self.config, velocity, latents, self._audio_scale, AUDIO_STD_DIMS)

    def both(
        self, video_velocity: Tensor, audio_velocity: Tensor, video: Tensor, audio: Tensor, timestep: int
    ) -> tuple[Tensor, Tensor]:
        """Guided velocities of video and audio, as `video` and `audio` give them."""
        return self.video(video_velocity, video, timestep), self.audio(audio_velocity, audio)


def _video_scale(config: GuidanceConfig, latent_frames: int, is_late: bool) -> Tensor:
    scale = torch.tensor(config.video_txt_guidance_scale, dtype=torch.float32, device="cpu")
    if config.use_cfg_trick:
        scale = scale.repeat(1, 1, latent_frames, 1, 1)
        scale[:, :, : config.cfg_trick_start_frame].clamp_(max=config.cfg_trick_value)
    if config.use_dynamic_cfg and is_late:
        scale = scale.clamp(max=config.dynamic_cfg_cutoff_value)
    return scale


def _guide(config: GuidanceConfig, velocity: Tensor, latents: Tensor, scale: Tensor, dims: tuple[int, ...]) -> Tensor:
    conditional, unconditional = velocity[0:1], velocity[1:2]
    if config.use_skimmed_cfg_linear:
        unconditional = _skim(conditional, unconditional, latents, scale, config.skimmed_cfg_scale)
    guided = unconditional + scale * (conditional - unconditional)
    if config.cfg_rescale > 0:
        guided = guided * _rescale_factor(conditional, guided, config.cfg_rescale, dims)
    return guided


def _skim(conditional: Tensor, unconditional: Tensor, latents: Tensor, scale: Tensor, skimmed_scale: float) -> Tensor:
    """The unconditional velocity, moved towards the conditional one where a scale above 1 would overshoot."""
    skimmable = scale > 1
    excess = torch.where(skimmable, scale - 1, 1.0)
    weight = (skimmed_scale - 1) / excess
    # A velocity of zeros stands for "no unconditional branch"; a tensor condition, because reading it would sync.
    skimmable = skimmable & (unconditional != 0).any()
    skimmed = unconditional
    for forwards in (True, False):
        pair = (conditional, skimmed) if forwards else (skimmed, conditional)
        target = conditional * (1 - weight) + skimmed * weight
        skimmed = torch.where(_overshoots(*pair, latents, scale) & skimmable, target, skimmed)
    return skimmed


def _overshoots(a: Tensor, b: Tensor, latents: Tensor, scale: Tensor) -> Tensor:
    """Where guiding from velocity b to velocity a by `scale` keeps a's direction and leaves the latents' side."""
    toward_b = latents - b
    displacement = latents - (toward_b + scale * ((latents - a) - toward_b))
    direction = torch.sign(a)
    return (
        (torch.sign(a - b) == direction)
        & (direction == torch.sign(scale * a - (scale - 1) * b))
        & (torch.sign(displacement) == torch.sign(displacement - latents))
    )


def _rescale_factor(conditional: Tensor, guided: Tensor, rescale: float, dims: tuple[int, ...]) -> Tensor:
    wanted = conditional.std(dim=dims, keepdim=True, correction=0)
    actual = guided.std(dim=dims, keepdim=True, correction=0)
    return rescale * (wanted / actual.clamp_min(1e-6)) + (1 - rescale)
