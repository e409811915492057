"""Which layout a stage runs under, and whether a profile's models can run under it; torch-free where nothing is asked
of the machine.
"""

from __future__ import annotations

from importlib import metadata, util
from math import prod

from magi2.config.profile import Profile
from magi2.config.settings import Settings
from magi2.models.preview.lengths import audio_latent_count, latent_size
from magi2.parallel.layout import ONE_RANK, ModelHeads, ParallelLayout, check_heads
from magi2.stages.contracts import refined_size
from magi2.types import StageName

TEAM_STAGES = frozenset({StageName.PREVIEW, StageName.REFINE})
"""Those that use every accelerator unless told otherwise."""
OPTIONAL_TEAM_STAGES = frozenset({StageName.DECODE})
"""Those that use many only when asked to: one is quick enough, and others may have the rest."""


def stage_layout(stage: StageName, asked: str | None, settings: Settings) -> ParallelLayout:
    """The layout that was asked for, else the deployment's, else all accelerators of this host; one rank for a stage
    that is for one. Raises: ConfigError when it is none.
    """
    if asked and stage in TEAM_STAGES | OPTIONAL_TEAM_STAGES:
        return ParallelLayout.parse(asked)
    if stage not in TEAM_STAGES:
        return ONE_RANK
    return ParallelLayout.parse(settings.layout) if settings.layout else _whole_host(settings)


def check_layout(layout: ParallelLayout, profile: Profile) -> None:
    """Raises: ConfigError with the numbers and the nearest layouts that work, when the profile's preview cannot run
    under this one; steps without guidance are shared by all ranks.
    """
    preview = profile.architectures.preview
    moe = preview.moe_config
    heads = ModelHeads(preview.num_heads, preview.num_query_groups, moe.num_heads, moe.num_experts)
    check_heads(layout, heads, profile.preview.evaluated.counts(profile.preview.steps))


def check_room(layout: ParallelLayout, profile: Profile, card_bytes: int) -> None:
    """Raises: ConfigError, with need and limit, when a rank of preview or refiner does not fit cards of this memory."""
    check_preview_room(layout, profile, card_bytes)
    if profile.refiner is not None:
        check_refiner_room(layout, profile, card_bytes)


def check_preview_room(layout: ParallelLayout, profile: Profile, card_bytes: int, *, image_tokens: int = 0) -> None:
    """Raises: ConfigError as `check_room` does; `image_tokens` are those of the reference images of one clip."""
    # Here: it needs torch, which a plan by default does not.
    import torch

    from magi2.models.preview.footprint import check_footprint

    preview = profile.preview
    tokens = {
        "video": prod(latent_size(profile.duration_s, preview.height, preview.width)),
        "audio": audio_latent_count(profile.duration_s),
        "text": profile.text.max_tokens,
        "image": image_tokens,
    }
    check_footprint(
        profile.architectures.preview,
        layout,
        tokens,
        card_bytes=card_bytes,
        compute_dtype=getattr(torch, profile.compute_dtype),
        weights=profile.compute.weights,
        branches=preview.evaluated.counts(preview.steps),
    )


def check_refiner_room(layout: ParallelLayout, profile: Profile, card_bytes: int) -> None:
    """Raises: ConfigError as `check_room` does."""
    import torch

    from magi2.models.refiner.footprint import check_footprint

    check_footprint(
        profile.architectures.refiner,
        layout,
        refined_size(profile),
        profile.text.max_tokens,
        card_bytes=card_bytes,
        compute_dtype=getattr(torch, profile.compute_dtype),
    )


def _whole_host(settings: Settings) -> ParallelLayout:
    """Ulysses over as many accelerators as there are, the largest power of two: heads divide by that."""
    if settings.device and (settings.device == "cpu" or ":" in settings.device):
        return ONE_RANK
    if settings.device is None and is_cpu_only():
        return ONE_RANK
    from magi2 import platform

    count = platform.device_count(accelerator=platform.current(settings.device))
    size = 1 << (count.bit_length() - 1)
    return ParallelLayout(cp=size, ep=size)


def is_cpu_only() -> bool:
    """Whether torch can use no accelerator here, whatever the host has; False where its version does not tell."""
    return util.find_spec("torch_musa") is None and metadata.version("torch").endswith("+cpu")


def is_cpu(device: str | None) -> bool:
    """Whether MAGI2_DEVICE of this value, or its absence, means the CPU; False where torch alone would know."""
    return is_cpu_only() if device is None else device.partition(":")[0] == "cpu"
