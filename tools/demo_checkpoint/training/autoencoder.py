"""What the picture decoder and the reference-image encoder learn: exact pictures, and latents that are written down."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from magi2.models.turbo_vae.decoder import TurboDecoder
from magi2.models.video_vae.encoder import WanEncoder

EDGE_WEIGHT = 5.0
"""Pixels near an edge count this much: they are few, and the shape is in them."""
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
    """Mean squared error of encoded images [B, 3, 1, H, W] against their written-down latents [B, 48, 1, h, w]."""
    return (encoder.encode(pixels) - latents).square().mean()
