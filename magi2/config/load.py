"""Reading profiles and architectures from `configs/`, with `extends` and with overrides from the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from magi2.config.profile import Profile
from magi2.config.strict import nearest, validate
from magi2.errors import ConfigError


def profile_names(configs: Path) -> list[str]:
    """Names of the profiles in `configs/profiles/`."""
    return sorted(path.stem for path in (configs / "profiles").glob("*.yaml") if not path.stem.startswith("_"))


def load_profile(name: str, configs: Path, overrides: Sequence[str] = ()) -> Profile:
    """The resolved profile `name` (of `configs/profiles/`, or a path that ends in .yaml).

    `overrides` are `dotted.key=value` strings, values in YAML. Raises ConfigError for an unknown profile, key or value.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else configs / "profiles" / f"{name}.yaml"
    if not path.is_file():
        raise ConfigError(f"unknown profile {name!r}", hint=nearest(name, profile_names(configs)))
    data = _read_extended(path, ())
    for override in overrides:
        _apply_override(data, override)
    data.setdefault("name", path.stem)
    data["architectures"] = _read_architectures(data.get("architectures"), configs, path)
    return validate(Profile, data, place=str(path.name))


def override_profile(profile: Profile, overrides: Sequence[str]) -> Profile:
    """`profile` with `dotted.key=value` changes. Raises ConfigError for an unknown key or a bad value.

    A change inside a section that the profile has switched off, as in refiner.steps=8 without a refiner, is not one.
    """
    data = profile.model_dump()
    for override in overrides:
        if _section(data, override) is not None:
            _apply_override(data, override)
    return validate(Profile, data, place=f"profile {profile.name}")


def is_switched_off(profile: Profile, override: str) -> bool:
    """Whether a `dotted.key=value` change lies in a section that the profile has switched off."""
    return _section(profile.model_dump(), override) is None


def load_negative_prompt(profile: Profile, configs: Path) -> str | None:
    """The profile's negative prompt, or None when it is switched off. Raises ConfigError if the file cannot be read."""
    if not profile.text.use_negative_prompt:
        return None
    path = configs / profile.text.negative_prompt
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"profile {profile.name}: negative prompt file {path}: {error}") from error


def _read_extended(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    if path in seen:
        raise ConfigError(f"{path}: extends itself through {' -> '.join(p.name for p in seen)}")
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: unreadable: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a profile is a mapping, this is a {type(data).__name__}")
    parent = data.pop("extends", None)
    if parent is None:
        return data
    parent_path = path.parent / (parent if str(parent).endswith((".yaml", ".yml")) else f"{parent}.yaml")
    if not parent_path.is_file():
        raise ConfigError(f"{path}: extends {parent!r}, which is not there")
    base = _read_extended(parent_path, (*seen, path))
    base.pop("name", None)
    return _merge(base, data)


def _merge(base: Mapping[str, Any], child: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merge key by key and the child wins; lists and null replace."""
    merged = dict(base)
    for key, value in child.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _section(data: Mapping[str, Any], override: str) -> Any:
    """What holds the key that `override` changes; None where the profile has switched it off."""
    section: Any = data
    for parent in override.partition("=")[0].split(".")[:-1]:
        section = section.get(parent, {}) if isinstance(section, Mapping) else {}
    return section


def _apply_override(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"override {override!r} is not of the form key=value, as in refiner.steps=8")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: the value is not YAML: {str(error).splitlines()[0]}") from error
    *parents, last = key.split(".")
    target = data
    for parent in parents:
        if not isinstance(target.get(parent), dict):
            target[parent] = {}
        target = target[parent]
    target[last] = value


def _read_architectures(names: object, configs: Path, profile: Path) -> dict[str, Any]:
    if not isinstance(names, Mapping):
        raise ConfigError(f"{profile}: architectures must name one file of {configs / 'models'} per network")
    return {str(network): _read_architecture(value, configs, profile) for network, value in names.items()}


def _read_architecture(value: object, configs: Path, profile: Path) -> object:
    if not isinstance(value, str):
        return value
    path = configs / "models" / f"{value}.json"
    if not path.is_file():
        known = [p.stem for p in (configs / "models").glob("*.json")]
        raise ConfigError(f"{profile}: unknown architecture {value!r}", hint=nearest(value, known))
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
