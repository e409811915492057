"""What a row may set of its profile, by dotted key, as the schema marks it: read by its type, and applied.

A key that the schema does not mark is refused by name.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from magi2.config.profile import Profile
from magi2.config.settable import ROW, RowSettable
from magi2.config.strict import validate
from magi2.errors import InputError
from magi2.inputs.text import quoted, shown


@dataclasses.dataclass(frozen=True)
class Setting:
    """A key of a profile that rows may set, and its type."""

    key: str
    kind: Any

    @property
    def is_list(self) -> bool:
        """Whether its value is several, which a table's cell has between blanks."""
        options = get_args(self.kind) if get_origin(self.kind) in _UNIONS else (self.kind,)
        return any(get_origin(option) is tuple for option in options)

    def read(self, value: object) -> Any:
        """The value of a row, of which text is read as its type is written. Raises: InputError naming key and value."""
        try:
            read = self._read(value)
        except ValidationError as error:
            wanted = " or ".join(dict.fromkeys(_lowered(each["msg"]) for each in error.errors()))
            raise InputError(f"{self.key} is {quoted(value)}: {wanted}") from None
        if isinstance(read, float) and not math.isfinite(read):
            raise InputError(f"{self.key} is {quoted(value)}, which is no number to compute with")
        return read

    def _read(self, value: object) -> Any:
        adapter: TypeAdapter[Any] = _adapter(self.key)
        if not isinstance(value, str):
            return adapter.validate_json(json.dumps(value, default=str), strict=True)
        parts = value.split()
        is_several = get_origin(self.kind) is tuple or (self.is_list and len(parts) > 1)
        return adapter.validate_python(parts if is_several else value.strip())


@cache
def settings_of_rows() -> Mapping[str, Setting]:
    """All that rows may set, by dotted key, in the order of the profile."""
    return {key: Setting(key, kind) for key, kind, is_marked in _leaves(Profile, "", None) if is_marked}


@cache
def keys_of_profiles() -> frozenset[str]:
    """Every dotted key of a profile, and of its sections."""
    keys = {key for key, _, _ in _leaves(Profile, "", None)}
    return frozenset(".".join(key.split(".")[:count]) for key in keys for count in range(1, key.count(".") + 2))


def derived_profile(profile: Profile, changes: Mapping[str, Any]) -> Profile:
    """The profile with the values that a row sets, by dotted key; itself when they change nothing of its clips.

    Raises: InputError where the profile has no such section, ConfigError for values that do not go together.
    """
    data = profile.model_dump()
    for key, value in changes.items():
        *parents, last = key.split(".")
        section = data
        for parent in parents:
            if section.get(parent) is None:
                section[parent] = _empty_section(profile, key, parent)
            section = section[parent]
        section[last] = value
    derived = validate(Profile, data, place=f"profile {shown(profile.name)}")
    changed = {key: value_at(derived, key) for key in changes if value_at(derived, key) != value_at(profile, key)}
    if not changed or derived.digest() == profile.digest():
        return profile
    return derived.model_copy(update={"changed": {**profile.changed, **_plain(changed)}})


def _empty_section(profile: Profile, key: str, section: str) -> dict[str, Any]:
    """What a section is that a profile has not. Raises InputError for one that only a profile can switch on."""
    if section != "schedule":
        raise InputError(f"{key}: profile {shown(profile.name)} has no {section}", hint="name a profile that has one")
    return {}


def value_at(profile: Profile, key: str) -> Any:
    """The value of a dotted key; None where the profile has no such section."""
    value: Any = profile
    for part in key.split("."):
        value = getattr(value, part, None)
    return value


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as documents hold them."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


_UNIONS = (typing.Union, types.UnionType)


@cache
def _adapter(key: str) -> TypeAdapter[Any]:
    return TypeAdapter(settings_of_rows()[key].kind)


def _leaves(kind: Any, prefix: str, mark: RowSettable | None) -> Iterator[tuple[str, Any, bool]]:
    """Dotted key, type and whether rows may set it, of every value below `kind`, whose `mark` holds for its keys."""
    for name, annotation, own in _members(kind):
        within = own or (ROW if mark is not None and (not mark.only or name in mark.only) else None)
        section = _section(annotation)
        if section is None:
            yield f"{prefix}{name}", annotation, within is not None
        else:
            yield from _leaves(section, f"{prefix}{name}.", within)


def _members(kind: Any) -> Iterator[tuple[str, Any, RowSettable | None]]:
    """Name, type with its bounds, and mark of what a model or dataclass holds."""
    if issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            mark = next((each for each in field.metadata if isinstance(each, RowSettable)), None)
            bounds = tuple(each for each in field.metadata if not isinstance(each, RowSettable))
            yield name, Annotated[field.annotation, *bounds] if bounds else field.annotation, mark
    else:
        hints = typing.get_type_hints(kind)
        yield from ((field.name, hints[field.name], None) for field in dataclasses.fields(kind))


def _section(annotation: Any) -> Any:
    """The model or dataclass that an annotation means, also where it may be absent; None for a plain value."""
    options = get_args(annotation) if get_origin(annotation) in _UNIONS else (annotation,)
    found = (each for each in options if isinstance(each, type) and (issubclass(each, BaseModel) or _is_data(each)))
    return next(found, None)


def _is_data(kind: type) -> bool:
    return dataclasses.is_dataclass(kind)


def _lowered(message: str) -> str:
    return message[:1].lower() + message[1:]
