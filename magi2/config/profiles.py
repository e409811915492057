"""The profiles of a batch whose rows name different ones, under one list of overrides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from magi2.config.load import (
    check_profile_name,
    is_switched_off,
    load_negative_prompt,
    load_profile,
    require_named_files,
)
from magi2.config.profile import Profile
from magi2.config.row_settings import derived_profile
from magi2.errors import ConfigError


class Profiles:
    """Profiles by name, each loaded once; `default` is the name of the one that None stands for.

    Other names are those of rows, and never paths. With `names_only` neither the default nor a negative prompt is one:
    so it is where the overrides come from a form or a request.

    An override changes the profiles that have its section, as it does when an earlier batch is run again: with
    refiner.steps=8 those without a refiner stay as they are.
    """

    def __init__(self, configs: Path, default: str, overrides: Sequence[str] = (), *, names_only: bool = False) -> None:
        self._configs = configs
        self._names_only = names_only
        self._default = default
        self._overrides = overrides
        self._loaded: dict[str, Profile] = {}
        self._applied: dict[str, list[str]] = {}

    def __call__(self, name: str | None) -> Profile:
        """The resolved profile. Raises ConfigError for an unknown profile, key or value."""
        if name or self._names_only:
            check_profile_name(name or self._default)
        name = name or self._default
        if name not in self._loaded:
            plain = load_profile(name, self._configs)
            applied = [override for override in self._overrides if not is_switched_off(plain, override)]
            profile = load_profile(name, self._configs, applied)
            self._loaded[name] = require_named_files(profile) if self._names_only else profile
            self._applied.setdefault(self._loaded[name].name, []).extend(applied)
        return self._loaded[name]

    def derive(self, profile: Profile, changes: Mapping[str, Any]) -> Profile:
        """As `derived_profile`; a negative prompt that is the profile's own already changes nothing.

        Raises: as that does, and ConfigError when the profile's negative prompt cannot be read.
        """
        if changes.get("text.negative_text") == load_negative_prompt(profile, self._configs):
            changes = {key: value for key, value in changes.items() if key != "text.negative_text"}
        return derived_profile(profile, changes)

    def require_all_applied(self, used: Iterable[Profile]) -> None:
        """Raises ConfigError when an override changes a section that none of these profiles has."""
        names = sorted({profile.name for profile in used})
        applied = {override for name in names for override in self._applied[name]}
        for override in self._overrides if names else ():
            if override not in applied:
                told = ", ".join(names)
                raise ConfigError(f"override {override!r} changes what is switched off in every profile used: {told}")
