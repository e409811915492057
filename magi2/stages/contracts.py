"""What each artifact holds: the files, and the tensors' shapes and dtypes, that its readers rely on; torch-free."""

from __future__ import annotations

from collections.abc import Mapping

from magi2.artifacts.manifest import Manifest
from magi2.artifacts.recipe import Recipe
from magi2.artifacts.tensors import TensorSpec
from magi2.config.profile import LATENT_STRIDE, Profile
from magi2.errors import ContractError, CorruptedArtifactError
from magi2.models.preview.lengths import audio_latent_count, latent_size
from magi2.types import CLIP, CONTACT_SHEET, NEGATIVE, POSTER, StageName

CAPTION_FILE, TENSORS, PICTURE, SOUND, PROBE = (
    "caption.json",
    "tensors.safetensors",
    "picture.mkv",
    "sound.wav",
    "probe.json",
)
PAYLOADS: Mapping[str, frozenset[str]] = {
    StageName.ENHANCE: frozenset({CAPTION_FILE}),
    NEGATIVE: frozenset({TENSORS}),
    StageName.ENCODE: frozenset({TENSORS}),
    StageName.PREVIEW: frozenset({TENSORS}),
    StageName.REFINE: frozenset({TENSORS}),
    StageName.DECODE: frozenset({PICTURE, SOUND}),
    StageName.MUX: frozenset({CLIP, POSTER, CONTACT_SHEET, PROBE}),
}
"""The files of each folder's artifacts."""

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


def contract_of(recipe: Recipe, profile: Profile) -> Contract | None:
    """What the tensors of a recipe's artifact are under its profile, None for one of other files."""
    if recipe.stage == StageName.ENCODE:
        return encode_contract(profile, sum(name.startswith("image_") for name in recipe.external))
    contracts = {NEGATIVE: text_contract, StageName.PREVIEW: preview_contract, StageName.REFINE: refine_contract}
    contract = contracts.get(recipe.stage)
    return contract(profile) if contract else None


def check_payloads(manifest: Manifest) -> None:
    """Raises CorruptedArtifactError when a manifest lacks a file that artifacts of its folder have."""
    missing = PAYLOADS.get(manifest.stage, frozenset()) - manifest.payloads.keys()
    if missing:
        place = f"{manifest.stage}/{manifest.key}"
        raise CorruptedArtifactError(f"{place}: has no {min(missing)}, its manifest names {sorted(manifest.payloads)}")


def check_promise(manifest: Manifest, contract: Contract | None) -> None:
    """Raises CorruptedArtifactError when a manifest promises other files or tensors than its stage makes.

    What was published kept the contract, so a manifest that does not was changed since, and its artifact is made anew.
    """
    check_payloads(manifest)
    if contract is None:
        return
    try:
        check_contract(manifest.payloads[TENSORS].tensors or {}, contract, f"{manifest.stage}/{manifest.key}: manifest")
    except ContractError as error:
        raise CorruptedArtifactError(str(error)) from error


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
