"""What tensors each artifact holds: the shapes and dtypes that its writer promises and its readers rely on."""

from __future__ import annotations

from collections.abc import Mapping

from magi2.artifacts.tensors import TensorSpec
from magi2.config.profile import LATENT_STRIDE, Profile
from magi2.errors import ContractError
from magi2.models.preview.lengths import audio_latent_count, latent_size

ANY = -1
"""A size that the clip decides: tokens, figures, cells of a reference image."""

Contract = Mapping[str, TensorSpec]


def text_contract(profile: Profile) -> Contract:
    """A text's embedding [1, L, C] in the profile's dtype; for the fp32 profile rows keep fp32."""
    width = profile.architectures.preview.text_in_channels
    return {"text_embeds": TensorSpec(profile.compute_dtype, (1, ANY, width))}


def encode_contract(profile: Profile, figures: int) -> Contract:
    """Text rows, one row per figure and one latent per reference image."""
    preview = profile.architectures.preview
    references = {
        f"reference_latents_{index}": TensorSpec("float32", (1, preview.video_in_channels, 1, ANY, ANY))
        for index in range(figures)
    }
    rows = TensorSpec(profile.compute_dtype, (figures, preview.text_in_channels))
    return {**text_contract(profile), "figure_embeds": rows, **references}


def preview_contract(profile: Profile) -> Contract:
    """Video latents [1, C, T, h, w], audio latents [1, A, C] and the random stream's position."""
    preview = profile.architectures.preview
    size = latent_size(profile.duration_s, profile.preview.height, profile.preview.width)
    return {
        "video": TensorSpec("float32", (1, preview.video_in_channels, *size)),
        "audio": TensorSpec("float32", (1, audio_latent_count(profile.duration_s), preview.audio_in_channels)),
        "generator_state": TensorSpec("uint8", (ANY,)),
    }


def refined_size(profile: Profile) -> tuple[int, int, int]:
    """Latent size (2T-1, H, W) after the refiner. Raises ContractError for a profile without one."""
    if profile.refiner is None:
        raise ContractError(f"profile {profile.name} has no refiner")
    frames = latent_size(profile.duration_s, profile.preview.height, profile.preview.width)[0]
    return 2 * frames - 1, profile.refiner.height // LATENT_STRIDE, profile.refiner.width // LATENT_STRIDE


def refine_contract(profile: Profile) -> Contract:
    """Video latents at delivery size."""
    channels = profile.architectures.preview.video_in_channels
    return {"video": TensorSpec("float32", (1, channels, *refined_size(profile)))}


def check_contract(found: Mapping[str, TensorSpec], contract: Contract, place: str) -> None:
    """Raises ContractError naming `place`, the tensor, what it is and what it must be."""
    if found.keys() != contract.keys():
        raise ContractError(f"{place}: holds {sorted(found)}, must hold {sorted(contract)}")
    for name, want in contract.items():
        have = found[name]
        same_rank = len(have.shape) == len(want.shape)
        fits = same_rank and all(w in (ANY, h) for h, w in zip(have.shape, want.shape, strict=True))
        if have.dtype != want.dtype or not fits:
            raise ContractError(f"{place}: {name} is {have}, must be {want}")
