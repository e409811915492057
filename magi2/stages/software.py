"""The set of libraries and programs at work here, which shapes speed and bits and is part of no recipe."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from magi2 import platform
from magi2.config.profile import Profile
from magi2.config.settings import Settings
from magi2.kernels.chosen import CHOSEN, kernels_at_work
from magi2.kernels.installed import installed
from magi2.media.ffmpeg import Ffmpeg, find_ffmpeg
from magi2.models.preview.config import BF16, Weights
from magi2.platform import Accelerator


def made_by(ffmpeg: Ffmpeg, kernels: Iterable[str], accelerator: Accelerator) -> dict[str, str]:
    """What a manifest says of it: libraries, the build of ffmpeg, and what computes the stage's steps `kernels`."""
    at_work = kernels_at_work(kernels, CHOSEN if accelerator.triton else {})
    return {**installed(), "ffmpeg": ffmpeg.version, "kernels": at_work}


def libraries() -> dict[str, str]:
    """Versions of torch, Triton and the attention library."""
    return dict(installed())


def here(settings: Settings) -> dict[str, str]:
    """The same without kernels, which follow from models. Raises: MissingToolError."""
    return {**installed(), "ffmpeg": find_ffmpeg(settings.ffmpeg).version}


def expert_step(weights: Weights) -> str:
    """How kernels of routed experts are called in `magi2.kernels.chosen`."""
    return "experts" if weights == BF16 else "FP8 experts"


def kernels_of(profile: Profile, settings: Settings) -> str:
    """What would compute the profile's models, as one line; the device is asked, which compiles what it has not yet."""
    accelerator = platform.current(settings.device)
    if not accelerator.triton:
        return "plain torch"
    # Here: a CPU machine need not have Triton.
    from magi2.kernels.attention import best_attention
    from magi2.kernels.proof import expert_features, fp8_expert_features, window_features

    device = platform.device(accelerator=accelerator)
    dtype = torch.bfloat16 if profile.compute_dtype == "bfloat16" else torch.float32
    preview, refiner = profile.architectures.preview, profile.architectures.refiner
    best_attention(preview.head_dim, preview.num_heads // preview.num_query_groups, dtype, device)
    steps = ["attention"]
    moe = preview.moe_config
    if moe.moe_layers:
        sizes = (preview.split_merge_size // moe.num_heads, moe.expert_intermediate_size, moe.num_experts, moe.top_k)
        prove = expert_features if profile.compute.weights == BF16 else fp8_expert_features
        prove(*sizes, dtype, device)
        steps.append(expert_step(profile.compute.weights))
    if profile.refiner:
        window_features(refiner.num_heads, refiner.num_query_groups, refiner.head_dim, dtype, device)
        steps.append("window attention")
    return kernels_at_work(steps)
