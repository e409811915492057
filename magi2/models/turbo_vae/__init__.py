"""Turbo video decoder: turns every clip's latents into frames, in independent windows."""

from magi2.models.turbo_vae.config import PUBLISHED_TURBO_DECODER, TINY_TURBO_DECODER, TurboDecoderConfig
from magi2.models.turbo_vae.decoder import TurboDecoder
from magi2.models.turbo_vae.loading import load_turbo_decoder
from magi2.models.turbo_vae.windows import Window, decoded_frame_count, plan_windows
from magi2.models.video_vae.initialise import init_random_

__all__ = [
    "PUBLISHED_TURBO_DECODER",
    "TINY_TURBO_DECODER",
    "TurboDecoder",
    "TurboDecoderConfig",
    "Window",
    "decoded_frame_count",
    "init_random_",
    "load_turbo_decoder",
    "plan_windows",
]
