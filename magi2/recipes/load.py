"""The recipes of a profile on a deployment's weights and enhancement endpoint; torch-free, so that planning can ask."""

from __future__ import annotations

from collections.abc import Mapping

from magi2.config.load import load_negative_prompt
from magi2.config.profile import Profile
from magi2.config.settings import Settings
from magi2.prompts.client import DEFAULT_BASE_URL, EndpointSettings
from magi2.prompts.enhance import resolve_mode
from magi2.recipes.book import RecipeBook
from magi2.recipes.marking import marking_of


def recipe_book(profile: Profile, settings: Settings, weights: Mapping[str, str]) -> RecipeBook:
    """The profile's recipes; `weights` gives each component's fingerprint, as a CheckpointFolder does.

    Raises: ConfigError when the profile asks for an endpoint that is not configured or its negative prompt is missing,
    and as `marking_of` does.
    """
    endpoint = endpoint_settings(settings)
    return RecipeBook(
        profile,
        fingerprints=weights,
        negative_prompt=load_negative_prompt(profile, settings.configs),
        enhancement_mode=resolve_mode(profile.enhancement.mode, endpoint),
        enhancement_model=endpoint.model if endpoint else None,
        marking=marking_of(profile, settings),
    )


def endpoint_settings(settings: Settings) -> EndpointSettings | None:
    """The enhancement endpoint, or None when the deployment configures none."""
    if not settings.pe_api_key and not settings.pe_base_url:
        return None
    return EndpointSettings(
        base_url=settings.pe_base_url or DEFAULT_BASE_URL,
        model=settings.pe_model,
        api_key=settings.pe_api_key or "",
        timeout_s=settings.pe_timeout_s,
    )
