"""What a profile's sizes must be for its clips to be made and delivered, checked before anything is rendered."""

from __future__ import annotations

from magi2.config.profile import LATENT_STRIDE, Profile
from magi2.config.settings import Settings
from magi2.errors import ConfigError
from magi2.media.delivery import LARGEST_SIDE, SMALLEST_SIDES, stretched, with_aspect
from magi2.parallel.layout import ParallelLayout
from magi2.stages.layouts import check_room

_GIB = 1 << 30


def require_one_aspect(profile: Profile) -> None:
    """Raises ConfigError, with both aspects, when the refiner would stretch the preview by a latent or more."""
    if profile.refiner is None:
        return
    previewed = profile.preview.width, profile.preview.height
    width, height = profile.decoded_size
    ratio = previewed[0] / previewed[1]
    if min(abs(width - height * ratio), abs(height - width / ratio)) >= LATENT_STRIDE:
        raise ConfigError(
            f"profile {profile.name}: the refiner makes {with_aspect(profile.decoded_size)} of previews of "
            f"{with_aspect(previewed)}, which stretches them",
            hint="set preview and refiner to one aspect, and delivery.fit to cover or contain for another",
        )


def require_stretch_is_wanted(profile: Profile) -> None:
    """Raises ConfigError, with both aspects, when the delivery would stretch clips and `stretch` does not say so."""
    delivery = profile.delivery
    if delivery.fit not in ("scale", "nearest") or delivery.stretch:
        return
    if stretched(profile.decoded_size, profile.delivered_size):
        raise ConfigError(
            f"profile {profile.name}: delivery.fit {delivery.fit} stretches {with_aspect(profile.decoded_size)} to "
            f"{with_aspect(profile.delivered_size)}",
            hint="delivery.fit=cover cuts what does not fit, contain adds bars, delivery.stretch=true stretches",
        )


def require_encodable(profile: Profile) -> None:
    """Raises ConfigError when the encoder takes no picture as small, or nobody shows one as large."""
    size, codec = profile.delivered_size, profile.delivery.codec
    least = SMALLEST_SIDES[codec]
    if min(size) < least or max(size) > LARGEST_SIDE:
        allowed = f"sides are {least} to {LARGEST_SIDE} pixels"
        raise ConfigError(
            f"profile {profile.name}: delivery {size[0]}x{size[1]} as {codec}, {allowed}",
            hint="set delivery.size or delivery.codec",
        )


def require_room(profile: Profile, settings: Settings) -> None:
    """Raises ConfigError, with need and limit, when preview or refiner do not fit the cards that the deployment names.

    Without MAGI2_LAYOUT and MAGI2_CARD_MEMORY_GIB nothing is known of the host that renders, which checks for itself.
    """
    if settings.layout is not None and settings.card_memory_gib is not None:
        check_room(ParallelLayout.parse(settings.layout), profile, round(settings.card_memory_gib * _GIB))
