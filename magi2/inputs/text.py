"""Text from outside: parsed within limits, and quoted so that it cannot harm a log or a terminal.

What the parsers raise quotes nothing of the text, since it may be of a file that nobody was meant to read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

import yaml

from magi2.inputs.limits import (
    MAX_JSON_DEPTH,
    MAX_NUMBER_CHARS,
    MAX_QUOTED_CHARS,
    MAX_YAML_ALIASES,
    MAX_YAML_CHARS,
    MAX_YAML_DEPTH,
)

NAME_PATTERN = "[A-Za-z0-9_][A-Za-z0-9._-]{0,99}"
_NAME = re.compile(NAME_PATTERN)
_TOO_DEEP = f"lists and objects are nested more than {MAX_JSON_DEPTH} deep"
_YAML_INTEGER, _YAML_FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"


def is_name(text: str) -> bool:
    """Whether `text` is the name of a file in a known folder, and can be no path that leads out of it."""
    return _NAME.fullmatch(text) is not None


def shown(text: object) -> str:
    """`text` for an error: on one line, without control characters, cut to `MAX_QUOTED_CHARS`."""
    plain = "".join(char if char.isprintable() else " " for char in str(text)[: MAX_QUOTED_CHARS + 1])
    return plain if len(plain) <= MAX_QUOTED_CHARS else f"{plain[: MAX_QUOTED_CHARS - 3]}..."


def quoted(value: object) -> str:
    """As `shown`, of the value as Python writes it."""
    return shown(repr(value))


class RepeatedKeyError(ValueError):
    """A mapping gives two values for one key; the message does not say which `key`."""

    def __init__(self, key: str) -> None:
        super().__init__("there are two values for one key")
        self.key = key


def load_json(text: str) -> Any:
    """The JSON value of the whole text; numbers are finite, keys of an object differ.

    Raises: ValueError for anything else, also for numbers and nesting beyond the limits; RepeatedKeyError.
    """
    try:
        value = _JSON.decode(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    check_depth(value)
    return value


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise RepeatedKeyError(key)
        mapping[key] = value
    return mapping


def check_depth(value: object) -> None:
    """Raises ValueError when lists and objects lie in each other more than `MAX_JSON_DEPTH` deep."""
    level: list[Any] = [value]
    for _ in range(MAX_JSON_DEPTH + 1):
        level = [item for member in level for item in _members(member) if isinstance(item, list | dict)]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _members(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _whole_number(text: str) -> int:
    _check_length(text)
    return int(text)


def _decimal_number(text: str) -> float:
    _check_length(text)
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is not finite")
    return number


def _check_length(text: str) -> None:
    if len(text) > MAX_NUMBER_CHARS:
        raise ValueError(f"a number has {len(text)} characters, at most {MAX_NUMBER_CHARS}")


_JSON = json.JSONDecoder(
    object_pairs_hook=_mapping, parse_int=_whole_number, parse_float=_decimal_number, parse_constant=_decimal_number
)


def load_yaml(text: str) -> Any:
    """The value of a YAML text: mappings, lists, text, finite numbers, dates, true, false and null.

    Raises: ValueError for anything else, also for size, nesting, aliases and numbers beyond the limits.
    """
    if len(text) > MAX_YAML_CHARS:
        raise ValueError(f"YAML of {len(text)} characters, at most {MAX_YAML_CHARS}")
    try:
        return yaml.load(text, Loader=_BoundedLoader)
    except _LimitError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ValueError(f"not YAML{place}") from None
    except Exception:  # what a tag promises and a value does not keep ends in errors of many types
        raise ValueError("not YAML, or a value that is not what its tag says") from None


class _LimitError(ValueError):
    pass


class _BoundedLoader(yaml.SafeLoader):
    """Counts while the text is read, so that what stands for too much is never unfolded."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.deep_construct = True  # refuses a value that holds itself
        self._depth = self._aliases = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            self._aliases += 1
        self._depth += 1
        if self._aliases > MAX_YAML_ALIASES:
            raise _LimitError(f"YAML with more than {MAX_YAML_ALIASES} aliases")
        if self._depth > MAX_YAML_DEPTH:
            raise _LimitError(f"YAML nested more than {MAX_YAML_DEPTH} deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        keys = [(key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(set(keys)) < len(keys):
            raise _LimitError(
                f"YAML with two values for one key, in the mapping that begins in line {node.start_mark.line + 1}"
            )
        return node


def _bounded_number(loader: _BoundedLoader, node: yaml.ScalarNode) -> float:
    if len(node.value) > MAX_NUMBER_CHARS:
        raise _LimitError(f"YAML with a number of {len(node.value)} characters, at most {MAX_NUMBER_CHARS}")
    number: float = yaml.SafeLoader.yaml_constructors[node.tag](loader, node)
    if not math.isfinite(number):
        raise _LimitError("YAML with a number that is not finite")
    return number


for _tag in (_YAML_INTEGER, _YAML_FLOAT):
    _BoundedLoader.add_constructor(_tag, _bounded_number)
