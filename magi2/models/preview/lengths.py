"""Sizes of a clip's latents from its duration and its pixels.

Source: MAGI-2 preview inference code. `round` is half to even on purpose.
"""

from __future__ import annotations

import math

from magi2.errors import InputError

PREVIEW_FPS = 12.5
AUDIO_LATENT_FPS = 25.0
SPATIAL_STRIDE = 16
_TIME_STRIDE = 8  # of the doubled frame count; the VAE's own stride is 4


def frame_count(duration_s: float, fps: float = PREVIEW_FPS) -> int:
    """Frames that the latent count is derived from: twice the preview's frames."""
    return round(duration_s * fps * 2)


def video_latent_count(duration_s: float, fps: float = PREVIEW_FPS) -> int:
    """Latent frames of a clip of `duration_s` seconds. Raises: InputError when the clip is shorter than one frame."""
    frames = frame_count(duration_s, fps) if math.isfinite(duration_s) else 0
    if frames < 1:
        raise InputError(f"duration of {duration_s} s gives no frame at {fps} frames a second")
    return (frames - 1) // _TIME_STRIDE + 1


def audio_latent_count(duration_s: float, audio_latent_fps: float = AUDIO_LATENT_FPS) -> int:
    """Audio latents of a clip of `duration_s` seconds. Raises: InputError when there would be none."""
    latents = round(duration_s * audio_latent_fps) if math.isfinite(duration_s) else 0
    if latents < 1:
        raise InputError(f"duration of {duration_s} s gives no audio latent at {audio_latent_fps} a second")
    return latents


def latent_size(duration_s: float, height: int, width: int) -> tuple[int, int, int]:
    """Video latent size (T, h, w); a picture is floored to whole latent cells of 16 x 16 pixels.

    Raises: InputError when the picture is smaller than one cell or the clip than one frame.
    """
    if height < SPATIAL_STRIDE or width < SPATIAL_STRIDE:
        raise InputError(f"picture of {width} x {height} pixels is smaller than {SPATIAL_STRIDE} x {SPATIAL_STRIDE}")
    return video_latent_count(duration_s), height // SPATIAL_STRIDE, width // SPATIAL_STRIDE
