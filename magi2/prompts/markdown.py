"""Render a decoded caption as the Markdown text that the video model was trained on.

The renderer knows no field names. Source: MAGI-2 preview inference code, prompt enhancement output format.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

_MAX_HEADING = 6
_ITEM_STEM = "item"
_ESCAPES = (("\r\n", "\\n"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))


def render_markdown(value: Mapping[str, Any]) -> str:
    """The caption as text ending in one newline; the empty string when nothing but blanks is in it.

    Null, blank strings and containers without content are left out; `false`, zero and NaN stay. Scalars come before
    nested fields, except at the root, where document order holds.
    """
    root = _prune(value)
    if not root:
        return ""
    lines: list[str] = []
    for position, (key, field) in enumerate(root.items()):
        if position:
            lines.append("")
        _field(lines, key, field, 1)
    return "\n".join(_tidy(lines)) + "\n"


def _prune(value: Any) -> Any:
    if isinstance(value, Mapping):
        members = ((key, _prune(member)) for key, member in value.items())
        return {key: member for key, member in members if member is not None} or None
    if isinstance(value, list):
        return [item for item in map(_prune, value) if item is not None] or None
    if isinstance(value, str):
        return value if value.strip() else None
    return value


def _field(lines: list[str], key: str, value: Any, level: int) -> None:
    if not isinstance(value, dict | list):
        lines.append(f"{key}:{_scalar(value)}")
    elif _is_flat(value):
        lines.append(f"{key}:" + " | ".join(map(_scalar, value)))
    else:
        lines += [_heading(level, key), ""]
        if isinstance(value, dict):
            _fields(lines, value, level + 1)
        else:
            _items(lines, key or _ITEM_STEM, value, level)


def _fields(lines: list[str], members: dict[str, Any], level: int) -> None:
    ordered = sorted(members.items(), key=lambda member: not _is_simple(member[1]))
    for position, (key, value) in enumerate(ordered):
        if position and isinstance(value, dict | list) and lines[-1]:
            lines.append("")
        _field(lines, key, value, level)


def _items(lines: list[str], stem: str, items: list[Any], level: int) -> None:
    for number, item in enumerate(items, start=1):
        title = f"{stem}{number}"
        if isinstance(item, dict):
            lines += [_heading(level + 1, title), ""]
            _fields(lines, item, level + 2)
            lines.append("")
        elif isinstance(item, list):
            lines += [_heading(level + 1, title), ""]
            _items(lines, _ITEM_STEM, item, level + 2)
        else:
            lines.append(f"{title}:{_scalar(item)}")


def _is_flat(value: Any) -> bool:
    return isinstance(value, list) and not any(isinstance(item, dict | list) for item in value)


def _is_simple(value: Any) -> bool:
    return not isinstance(value, dict | list) or _is_flat(value)


def _heading(level: int, title: str) -> str:
    return f"{'#' * level} {title}" if level <= _MAX_HEADING else f"*{title}*"


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        for raw, visible in _ESCAPES:
            value = value.replace(raw, visible)
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def _tidy(lines: list[str]) -> Iterator[str]:
    pending_blank = False
    for line in lines:
        if not line:
            pending_blank = True
            continue
        if pending_blank:
            yield ""
        pending_blank = False
        yield line.rstrip()
