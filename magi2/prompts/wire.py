"""What caption schemas share: the closed base model, the schema sent to the endpoint, and the filling of blanks."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

Schema = dict[str, Any]

_DROPPED = ("title", "description")


class Closed(BaseModel):
    """An object without optional or unknown members; a value of another type is an error, never converted."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, validate_assignment=False)


def wire_schema(model: type[BaseModel]) -> Schema:
    """The JSON schema for `response_format`: no references, no titles, property order as declared.

    Order matters: a constrained decoder emits members in schema order, and order shows in the rendered caption.
    """
    schema = model.model_json_schema()
    return _inline(schema, schema.get("$defs", {}))


def _inline(node: Schema, definitions: dict[str, Schema]) -> Schema:
    if reference := node.get("$ref"):
        return _inline(definitions[reference.rsplit("/", 1)[1]], definitions)
    if node["type"] == "object":
        members = {name: _inline(member, definitions) for name, member in node["properties"].items()}
        return {"type": "object", "additionalProperties": False, "required": list(members), "properties": members}
    if node["type"] == "array":
        return {"type": "array", "items": _inline(node["items"], definitions)}
    return {"type": node["type"]}


def blank(schema: Schema) -> Any:
    """The value that stands for "does not apply"; 10.0 for the duration, 1 for a count."""
    match schema["type"]:
        case "object":
            return {key: blank(member) for key, member in schema["properties"].items()}
        case "array":
            return []
        case "number":
            return 10.0
        case "integer":
            return 1
        case _:
            return ""


class Completion:
    """A caption brought to the wire shape, and the places where that took a liberty."""

    def __init__(self) -> None:
        self.filled: list[str] = []
        self.dropped: list[str] = []
        self.coerced: list[str] = []

    def complete(self, value: Any, schema: Schema, place: str = "") -> Any:
        """`value` in schema order with absent and null members blank, unknown ones gone, integral counts integers, and
        text that can be encoded.

        Values of a wrong type stay, for validation to refuse.
        """
        if schema["type"] == "object" and isinstance(value, dict):
            return self._object(value, schema["properties"], place)
        if schema["type"] == "array" and isinstance(value, list):
            kept = [item for item in value if item is not None]
            if len(kept) < len(value):
                self.dropped.append(f"{place}[null]")
            return [self.complete(item, schema["items"], f"{place}[{index}]") for index, item in enumerate(kept)]
        if schema["type"] == "integer" and isinstance(value, float) and value.is_integer():
            self.coerced.append(place)
            return int(value)
        if isinstance(value, str) and value != (text := _encodable(value)):
            self.coerced.append(place)
            return text
        return value

    def _object(self, value: dict[str, Any], properties: dict[str, Schema], place: str) -> dict[str, Any]:
        prefix = f"{place}." if place else ""
        self.dropped += [f"{prefix}{_encodable(key)}"[:120] for key in value if key not in properties]
        result = {}
        for key, member in properties.items():
            if value.get(key) is None:
                self.filled.append(f"{prefix}{key}")
                result[key] = blank(member)
            else:
                result[key] = self.complete(value[key], member, f"{prefix}{key}")
        return result


def _encodable(text: str) -> str:
    """The text with halves of surrogate pairs, which JSON escapes can make and UTF-8 cannot hold, as U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def validation_problems(error: ValidationError) -> list[str]:
    """One line per problem: the place and what was expected there, never the value that was found."""
    return [
        f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"[:200]
        for problem in error.errors(include_input=False, include_url=False, include_context=False)
    ]
