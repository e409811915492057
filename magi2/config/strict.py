"""Validation that refuses unknown keys by naming the nearest valid one, for pydantic models and dataclasses alike."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from magi2.errors import ConfigError
from magi2.inputs.text import quoted, shown

T = TypeVar("T")
_LISTED = 20
"""Keys that a hint lists at most."""


def validate(kind: type[T], data: object, place: str) -> T:
    """`data` (decoded YAML or JSON) as a `kind`.

    Raises: ConfigError naming `place`, the dotted key, the value and, for an unknown key, the nearest valid one.
    """
    _refuse_unknown_keys(kind, data, place, "")
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = shown(".".join(str(part) for part in first["loc"])) or "the whole value"
        raise ConfigError(f"{place}: {key}: {first['msg']}, got {first.get('input')!r:.80}") from error


def nearest(key: str, valid: Collection[str]) -> str:
    """A phrase that names the valid key closest to `key`, or lists them when none is close, as many as one reads."""
    close = difflib.get_close_matches(shown(key), list(valid), n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    more = f" and {len(valid) - _LISTED} more" if len(valid) > _LISTED else ""
    return f"valid: {', '.join(sorted(valid)[:_LISTED])}{more}"


def _refuse_unknown_keys(kind: object, data: object, place: str, prefix: str) -> None:
    if not isinstance(data, Mapping):
        return
    if typing.get_origin(kind) is dict:
        for key, value in data.items():
            _refuse_unknown_keys(typing.get_args(kind)[1], value, place, f"{prefix}{key}.")
        return
    fields = _fields(kind)
    if fields is None:
        return
    for key, value in data.items():
        if key not in fields:
            raise ConfigError(f"{place}: unknown key {quoted(prefix + str(key))}", hint=nearest(str(key), fields))
        _refuse_unknown_keys(fields[key], value, place, f"{prefix}{key}.")


def _fields(kind: object) -> dict[str, Any] | None:
    """Field name -> type of a pydantic model or dataclass (also inside `X | None`), else None."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        options = [found for option in typing.get_args(kind) if (found := _fields(option)) is not None]
        return options[0] if options else None
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}
    return None
