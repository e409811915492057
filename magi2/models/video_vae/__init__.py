"""Wan2.2 video autoencoder: encodes the conditioning image, and decodes clips where time matters less than detail."""

from magi2.models.video_vae.config import TINY_WAN_VAE, WanVaeConfig
from magi2.models.video_vae.decoder import WanDecoder
from magi2.models.video_vae.encoder import WanEncoder
from magi2.models.video_vae.initialise import init_random_
from magi2.models.video_vae.loading import load_wan_decoder, load_wan_encoder
from magi2.models.video_vae.statistics import LATENT_CHANNELS, LATENT_MEAN, LATENT_STD

__all__ = [
    "LATENT_CHANNELS",
    "LATENT_MEAN",
    "LATENT_STD",
    "TINY_WAN_VAE",
    "WanDecoder",
    "WanEncoder",
    "WanVaeConfig",
    "init_random_",
    "load_wan_decoder",
    "load_wan_encoder",
]
