"""A validator for the few JSON schema keywords that the wire and semantic schemas use."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "wire"
_TYPES: dict[str, Any] = {"object": dict, "array": list, "string": str, "number": (int, float), "integer": int}


def load(name: str) -> dict[str, Any]:
    """The schema "t2v", "i2v", "t2v.semantic" or "i2v.semantic"."""
    return load_file(f"pe_{name}.schema.json")


def load_file(name: str) -> dict[str, Any]:
    """The schema in a file of the wire folder."""
    return dict(json.loads((FOLDER / name).read_bytes()))


def problems(value: Any, schema: dict[str, Any], place: str = "") -> list[str]:
    """What breaks the schema, one line each."""
    found = problems(value, load_file(schema["$ref"]), place) if "$ref" in schema else []
    kind = schema.get("type")
    if kind and (not isinstance(value, _TYPES[kind]) or isinstance(value, bool)):
        return [*found, f"{place}: not {kind}"]
    if isinstance(value, dict):
        return found + _object_problems(value, schema, place)
    if isinstance(value, list):
        return found + _array_problems(value, schema, place)
    if isinstance(value, str):
        fits = len(value) >= schema.get("minLength", 0) and re.search(schema.get("pattern", ""), value)
    else:
        fits = schema.get("minimum", value) <= value <= schema.get("maximum", value)
        fits = fits and value == schema.get("const", value)
    return found if fits else [*found, f"{place}: {value!r}"]


def _object_problems(value: dict[str, Any], schema: dict[str, Any], place: str) -> list[str]:
    members = schema.get("properties", {})
    found = [f"{place}.{key}: missing" for key in schema.get("required", ()) if key not in value]
    if schema.get("additionalProperties") is False:
        found += [f"{place}.{key}: unknown" for key in value if key not in members]
    for key in value.keys() & members.keys():
        found += problems(value[key], members[key], f"{place}.{key}")
    return found


def _array_problems(value: list[Any], schema: dict[str, Any], place: str) -> list[str]:
    found = []
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        found.append(f"{place}: {len(value)} items")
    if schema.get("uniqueItems") and len({json.dumps(item) for item in value}) < len(value):
        found.append(f"{place}: repeated items")
    for index, item in enumerate(value):
        found += problems(item, schema.get("items", {}), f"{place}[{index}]")
    return found
