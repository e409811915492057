"""Turn a language model's reply into a JSON object.

Two paths. `decode_strict` accepts exactly what the published pipeline accepts and names the three ways it refuses
(`PARSE`, `NOT_OBJECT`, `MISSING_KEYS`). `decode_lenient` is what rendering uses: it also undoes a byte order mark, a
code fence, surrounding prose and broken punctuation, and says what it undid.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import json_repair

from magi2.errors import EnhancementError
from magi2.inputs.text import check_depth

Task = Literal["t2v", "i2v"]
DecodeKind = Literal["PARSE", "NOT_OBJECT", "MISSING_KEYS"]

ROOT_KEYS: dict[Task, tuple[str, ...]] = {
    "t2v": ("global_layer", "dynamic_layer"),
    "i2v": (
        "global_caption",
        "reference_bank",
        "shot_timeline",
        "audio_event_timeline",
        "visible_text",
        "generation_requirements",
    ),
}

_FENCE = re.compile(r"\A\s*```[A-Za-z0-9_-]*[ \t]*\r?\n(.*?)\r?\n?[ \t]*```\s*\Z", re.DOTALL)


class DecodeError(EnhancementError):
    """The reply is not the JSON object that the task asks for; the message never carries the reply."""

    def __init__(self, kind: DecodeKind, message: str) -> None:
        super().__init__(message)
        self.kind: DecodeKind = kind


def parse_json(text: str) -> Any:
    """The JSON value of the whole text, in the dialect of the published pipeline.

    NaN and the infinities are numbers, a duplicate key keeps the place of its first and the value of its last
    mention, key order is kept, integers are exact. Raises ValueError for anything else, nesting too deep included.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("the JSON text is nested too deeply") from None
    check_depth(value)
    return value


def decode_strict(text: str, task: Task) -> dict[str, Any]:
    """The reply as an object with the task's root keys (their values may be anything); raises DecodeError."""
    try:
        value = parse_json(text)
    except ValueError as error:
        raise DecodeError("PARSE", f"the reply is not JSON: {_reason(error)}") from None
    return require_root(value, task)


def decode_lenient(text: str, task: Task) -> tuple[dict[str, Any], list[str]]:
    """The reply as an object with the task's root keys, and one line for each liberty taken.

    A reply that ends before its object closes is refused, not completed: what is missing cannot be guessed.
    Raises: DecodeError.
    """
    try:
        return require_root(parse_json(text), task), []
    except ValueError as error:
        reason = _reason(error)
    candidate, repairs = _outermost_object(text)
    if candidate is None:
        raise DecodeError("PARSE", f"the reply is not one complete JSON object: {reason}")
    try:
        value = parse_json(candidate)
    except ValueError:
        value = _mend(candidate)
        repairs.append("json: broken punctuation mended")
    return require_root(value, task), repairs


def require_root(value: Any, task: Task) -> dict[str, Any]:
    """`value` when it is an object holding every root key of the task; raises DecodeError otherwise."""
    if not isinstance(value, dict):
        raise DecodeError("NOT_OBJECT", f"the reply is a JSON {_kind(value)}, not an object")
    missing = [key for key in ROOT_KEYS[task] if key not in value]
    if missing:
        raise DecodeError("MISSING_KEYS", f"the reply lacks the root keys {', '.join(missing)}")
    return value


def _mend(text: str) -> Any:
    try:
        return json_repair.loads(text, skip_json_loads=True)
    except (ValueError, RecursionError):
        raise DecodeError("PARSE", "the reply is not JSON and cannot be mended") from None


def _outermost_object(text: str) -> tuple[str | None, list[str]]:
    repairs: list[str] = []
    if text.startswith("\ufeff"):
        text = text[1:]
        repairs.append("json: byte order mark removed")
    if fenced := _FENCE.match(text):
        text = fenced[1]
        repairs.append("json: code fence removed")
    start = text.find("{")
    if start < 0:
        return None, repairs
    end = _closing_brace(text, start)
    if end is None:
        # Unescaped quotes confuse the scan; a text that does end in a brace is still worth mending.
        end = len(text.rstrip()) if text.rstrip().endswith("}") and _depth(text) <= 0 else None
    if end is None:
        return None, repairs
    if text[:start].strip() or text[end:].strip():
        repairs.append("json: prose around the object removed")
    return text[start:end], repairs


def _closing_brace(text: str, start: int) -> int | None:
    depth, in_string, escaped = 0, False, False
    for index in range(start, len(text)):
        char = text[index]
        if escaped:
            escaped = False
        elif in_string:
            escaped, in_string = char == "\\", char != '"'
        elif char == '"':
            in_string = True
        elif char in "{}":
            depth += 1 if char == "{" else -1
            if depth == 0:
                return index + 1
    return None


def _depth(text: str) -> int:
    return text.count("{") - text.count("}")


def _kind(value: object) -> str:
    if isinstance(value, list):
        return "array"
    return "string" if isinstance(value, str) else "null" if value is None else "number or boolean"


def _reason(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    return str(error)[:120]
