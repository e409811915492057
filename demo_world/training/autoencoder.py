"""What the picture decoder and the reference-image encoder learn: exact pictures, and latents that are written down."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from demo_world.video_latents import DISTANCE_CHANNELS, squashed_distances
from magi2.models.turbo_vae.decoder import TurboDecoder
from magi2.models.video_vae.encoder import WanEncoder

EDGE_WEIGHT = 5.0
"""How much more counts what is near an edge: it is little, and the shape is in it."""
EDGE_REACH = 5
EDGE_CONTRAST = 0.1


def decoder_loss(decoder: TurboDecoder, latents: Tensor, pixels: Tensor, weights: Tensor, *, is_first: bool) -> Tensor:
    """Weighted L1 plus L2 of one window: latents [B, 48, T, h, w], of the beginning of a clip or of its middle.

    `pixels` [B, 3, F, 16 h, 16 w] in [-1, 1] are the truth, F is 4 T - 3 in a first window and 4 T in any other;
    `weights` [B, 1, F, 16 h, 16 w] say how much each pixel counts.
    """
    frames = decoder.decoder(decoder.denormalise(latents), is_first)
    error: Tensor = frames.float() - pixels
    return (weights * (error.abs() + error.square())).mean()


def edge_weights(pixels: Tensor) -> Tensor:
    """Weight of every pixel of [B, 3, F, H, W]: [B, 1, F, H, W], higher where there is contrast in the frame nearby."""
    window, padding = (1, EDGE_REACH, EDGE_REACH), (0, EDGE_REACH // 2, EDGE_REACH // 2)
    brightest = functional.max_pool3d(pixels, window, stride=1, padding=padding)
    darkest = -functional.max_pool3d(-pixels, window, stride=1, padding=padding)
    is_edge = (brightest - darkest).amax(dim=1, keepdim=True) > EDGE_CONTRAST
    return torch.where(is_edge, EDGE_WEIGHT, 1.0)


def encoder_loss(encoder: WanEncoder, pixels: Tensor, latents: Tensor) -> Tensor:
    """Weighted squared error of encoded images [B, 3, 1, H, W] against their written-down latents [B, 48, 1, h, w].

    Distances count the more the nearer the edge is: far away it matters little how far.
    """
    weights = 1 + EDGE_WEIGHT * (1 - squashed_distances(latents).square())
    error: Tensor = (encoder.encode(pixels) - latents).square()
    distances, colours = error.split([DISTANCE_CHANNELS, error.shape[1] - DISTANCE_CHANNELS], dim=1)
    return torch.cat([weights * distances, colours], dim=1).mean()
