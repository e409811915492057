"""The profiles of a batch whose rows name different ones, under one list of overrides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from magi2.config.load import check_profile_name, is_switched_off, load_profile, require_named_files
from magi2.config.profile import Profile
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

    @property
    def by_digest(self) -> dict[str, Profile]:
        """Those that were asked for."""
        return {profile.digest(): profile for profile in self._loaded.values()}

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
            self._applied.setdefault(self._loaded[name].digest(), []).extend(applied)
        return self._loaded[name]

    def require_all_applied(self, digests: Iterable[str]) -> None:
        """Raises ConfigError when an override changes a section that none of these profiles, by digest, has."""
        used = sorted(set(digests))
        applied = {override for digest in used for override in self._applied[digest]}
        for override in self._overrides if used else ():
            if override not in applied:
                names = ", ".join(sorted({self.by_digest[digest].name for digest in used}))
                raise ConfigError(f"override {override!r} changes what is switched off in every profile used: {names}")
