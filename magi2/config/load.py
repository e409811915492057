"""Reading profiles and architectures from `configs/`, with `extends` and with overrides from the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from magi2.config.profile import Profile
from magi2.config.row_settings import value_at
from magi2.config.strict import nearest, validate
from magi2.errors import ConfigError, InputError
from magi2.inputs.files import InputRoots, resolved
from magi2.inputs.limits import MAX_OVERRIDE_CHARS, MAX_OVERRIDES, MAX_YAML_DEPTH
from magi2.inputs.readable import readable
from magi2.inputs.text import is_name, load_json, load_yaml, quoted, shown

_PATH_SUFFIXES = (".yaml", ".yml")
"""What a user of this machine may name in place of a profile of ours."""


def profile_names(configs: Path) -> list[str]:
    """Names of the profiles in `configs/profiles/`."""
    return sorted(path.stem for path in (configs / "profiles").glob("*.yaml") if not path.stem.startswith("_"))


def experimental_names(configs: Path) -> list[str]:
    """Those of the profiles that call themselves experimental; what cannot be read says nothing."""
    found = []
    for name in profile_names(configs):
        with suppress(ConfigError):
            data = _read_extended(configs / "profiles" / f"{name}.yaml", (), InputRoots((configs,)))
            found += [name] if data.get("experimental") is True else []
    return found


def load_profile(name: str, configs: Path, overrides: Sequence[str] = ()) -> Profile:
    """The resolved profile `name` (of `configs/profiles/`, or a path that ends in .yaml).

    A path is for the user of this machine: `check_profile_name` refuses it where somebody else gives the name.
    `overrides` are `dotted.key=value` strings, values in YAML. Raises ConfigError for an unknown profile, key or value.
    """
    is_path = name.endswith(_PATH_SUFFIXES)
    path = Path(name) if is_path else configs / "profiles" / f"{name}.yaml"
    if not (is_path or is_name(name)) or not os.path.isfile(path):
        raise ConfigError(f"unknown profile {quoted(name)}", hint=nearest(name, profile_names(configs)))
    data = _read_extended(path, (), None if is_path else InputRoots((configs,)))
    _check_overrides(overrides)
    for override in overrides:
        _apply_override(data, override)
    data.setdefault("name", path.stem)
    if "changed" in data:
        raise ConfigError(f"{path.name}: changed tells what rows changed, and nobody writes it")
    data["architectures"] = _read_architectures(data.get("architectures"), configs, path)
    _read_tiers(data.get("preview"), configs, path)
    return validate(Profile, data, place=str(path.name))


def check_profile_name(name: str) -> None:
    """Raises ConfigError when a name that came with a row, a form or a request is no name, but perhaps a path."""
    if not is_name(name) or name.endswith(_PATH_SUFFIXES):
        raise ConfigError(
            f"profile {quoted(name)} is not a name", hint="name one of configs/profiles; only --profile takes a path"
        )


def require_named_files(profile: Profile) -> Profile:
    """`profile`, as a row, a form or a request may ask for it. Raises ConfigError when it names a path."""
    if not is_name(profile.text.negative_prompt):
        raise ConfigError(
            f"profile {shown(profile.name)}: text.negative_prompt {quoted(profile.text.negative_prompt)} is not a name",
            hint="name a file of the configs folder",
        )
    return profile


def override_profile(profile: Profile, overrides: Sequence[str]) -> Profile:
    """The profile of an earlier batch with `dotted.key=value` changes.

    Raises: ConfigError for an unknown key, a bad value, or a negative prompt that is a path.

    What a row changed is no longer told of where it is changed again. A change inside a section that the profile has
    switched off, as in refiner.steps=8 without a refiner, is not one.
    """
    data = profile.model_dump()
    _check_overrides(overrides)
    for override in overrides:
        if _section(data, override) is not None:
            _apply_override(data, override)
    found = require_named_files(validate(Profile, data, place=f"profile {shown(profile.name)}"))
    rows = {key: value for key, value in found.changed.items() if value_at(found, key) == value_at(profile, key)}
    return found if rows == found.changed else found.model_copy(update={"changed": rows})


def is_switched_off(profile: Profile, override: str) -> bool:
    """Whether a `dotted.key=value` change lies in a section that the profile has switched off."""
    return _section(profile.model_dump(), override) is None


def load_negative_prompt(profile: Profile, configs: Path) -> str | None:
    """The profile's negative prompt as readers see it, or None when it is switched off.

    Raises: ConfigError if the file cannot be read, or shows nothing.

    It is the profile's own text, else that of a file: a name is a file of `configs` itself; a path is for the user of
    this machine, see `require_named_files`.
    """
    if not profile.text.use_negative_prompt:
        return None
    if profile.text.negative_text is not None:
        return profile.text.negative_text
    name = profile.text.negative_prompt
    path = configs / name
    try:
        roots = InputRoots((configs,)) if is_name(name) else InputRoots.around(path)
        return readable(roots.read_text(path, shown(path)), shown(path))
    except InputError as error:
        raise ConfigError(
            f"profile {shown(profile.name)}: negative prompt file {error}",
            hint="put the text there, or name another file as text.negative_prompt",
        ) from None


def _read_extended(path: Path, seen: tuple[Path, ...], roots: InputRoots | None) -> dict[str, Any]:
    """A profile's mapping; `roots` are the folders for it and what it extends, None for a user's own files."""
    if (place := resolved(path)) in seen:
        raise ConfigError(f"{path}: extends itself through {' -> '.join(p.name for p in seen)}")
    data = _read_mapping(path, roots or InputRoots.around(path))
    parent = data.pop("extends", None)
    if parent is None:
        return data
    if not isinstance(parent, str):
        raise ConfigError(f"{path}: extends is the name of a profile, this is a {type(parent).__name__}")
    parent_path = path.parent / (parent if parent.endswith(_PATH_SUFFIXES) else f"{parent}.yaml")
    if not os.path.isfile(parent_path):  # which asks nothing of the system that a name too long could fail
        raise ConfigError(f"{path}: extends {quoted(parent)}, which is not there")
    base = _read_extended(parent_path, (*seen, place), roots)
    base.pop("name", None)
    return _merge(base, data)


def _read_mapping(path: Path, roots: InputRoots) -> dict[str, Any]:
    try:
        data = load_yaml(roots.read_text(path, shown(path))) or {}
    except ValueError as error:
        raise ConfigError(f"{shown(path)}: unreadable: {error}") from None
    except InputError as error:
        raise ConfigError(str(error)) from None
    if not isinstance(data, dict):
        raise ConfigError(f"{shown(path)}: a profile is a mapping, this is a {type(data).__name__}")
    return data


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


def _check_overrides(overrides: Sequence[str]) -> None:
    if len(overrides) > MAX_OVERRIDES:
        raise ConfigError(f"there are {len(overrides)} overrides, at most {MAX_OVERRIDES}")
    for override in overrides:
        if len(override) > MAX_OVERRIDE_CHARS or override.partition("=")[0].count(".") >= MAX_YAML_DEPTH:
            raise ConfigError(
                f"override {quoted(override)} is longer than {MAX_OVERRIDE_CHARS} characters "
                f"or names a key of more than {MAX_YAML_DEPTH} parts"
            )


def _apply_override(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"override {quoted(override)} is not of the form key=value, as in refiner.steps=8")
    try:
        value = load_yaml(text)
    except ValueError as error:
        raise ConfigError(f"override {quoted(override)}: the value is {error}") from None
    *parents, last = key.split(".")
    target = data
    for parent in parents:
        if not isinstance(target.get(parent), dict):
            target[parent] = {}
        target = target[parent]
    target[last] = value
    if key == "text.negative_prompt" or (key == "text.use_negative_prompt" and value is False):
        target.pop("negative_text", None)  # which would go before the file, or is not wanted either


def _read_architectures(names: object, configs: Path, profile: Path) -> dict[str, Any]:
    if not isinstance(names, Mapping):
        raise ConfigError(f"{profile}: architectures must name one file of {configs / 'models'} per network")
    return {str(network): _read_architecture(value, configs, profile) for network, value in names.items()}


def _read_architecture(value: object, configs: Path, profile: Path) -> object:
    if not isinstance(value, str):
        return value
    path = configs / "models" / f"{value}.json"
    if not is_name(value) or not os.path.isfile(path):
        known = [p.stem for p in (configs / "models").glob("*.json")]
        raise ConfigError(f"{shown(profile)}: unknown architecture {quoted(value)}", hint=nearest(value, known))
    try:
        return load_json(InputRoots((configs,)).read_text(path, shown(path)))
    except ValueError as error:
        raise ConfigError(f"{shown(path)}: not JSON: {error}") from None
    except InputError as error:
        raise ConfigError(str(error)) from None


def _read_tiers(preview: object, configs: Path, profile: Path) -> None:
    """Put what the file of `configs/tiers/` holds in place of its name."""
    if not isinstance(preview, dict) or not isinstance(name := preview.get("tiers"), str):
        return
    path = configs / "tiers" / f"{name}.yaml"
    if not is_name(name) or not os.path.isfile(path):
        known = [each.stem for each in (configs / "tiers").glob("*.yaml")]
        raise ConfigError(f"{shown(profile)}: unknown tiers {quoted(name)}", hint=nearest(name, known))
    preview["tiers"] = _read_mapping(path, InputRoots((configs,)))
