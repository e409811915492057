"""Ways to damage files; each gives other bytes than it was given, and the same for the same random stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

Change = Callable[[bytes, Random], bytes]


def flip_bits(data: bytes, random: Random) -> bytes:
    """One to four bits flipped."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 4)):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def truncate(data: bytes, random: Random) -> bytes:
    """Cut at the end, by a byte or by nearly all."""
    return data[: random.choice([len(data) - 1, random.randrange(len(data))])]


def double(data: bytes, random: Random) -> bytes:
    """A part, or the whole, twice."""
    first = random.choice([0, random.randrange(len(data))])
    return data + data[first:]


def swap(data: bytes, random: Random) -> bytes:
    """Two pieces in each other's place."""
    size = random.randint(1, max(1, len(data) // 4))
    one = random.randrange(max(1, len(data) // 2 - size + 1))
    two = random.randrange(len(data) // 2, len(data) - size + 1)
    return data[:one] + data[two : two + size] + data[one + size : two] + data[one : one + size] + data[two + size :]


def fill_with_zeros(data: bytes, random: Random) -> bytes:
    """A piece, or everything, zero: what a file system may leave of a block."""
    size = random.choice([len(data), random.randint(1, len(data))])
    first = random.randrange(len(data) - size + 1)
    return data[:first] + bytes(size) + data[first + size :]


def append(data: bytes, random: Random) -> bytes:
    """More at the end."""
    return data + random.choice([b"\n", b" ", b"\0", random.randbytes(random.randint(1, 64))])


def change_line_ends(data: bytes, random: Random) -> bytes:
    """As another system or editor writes them."""
    return random.choice([data.replace(b"\n", b"\r\n"), data.replace(b"\n", b"\r"), data.replace(b"\n", b"")])


def change_value(data: bytes, random: Random) -> bytes:
    """One value of a JSON object, at any depth, changed or taken out; everything else as it was written."""
    content = json.loads(data)
    holder, key = random.choice(_places(content))
    value = holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int | float):
        holder[key] = value + random.choice([1, -1, 8])
    elif isinstance(value, str) and value:
        holder[key] = random.choice([value[:-1], value + "0", value.swapcase(), f"{value[-1]}{value[:-1]}"])
    else:
        del holder[key]
    return _as_written(content, data)


def rename_key(data: bytes, random: Random) -> bytes:
    """One key of a JSON object, at any depth, renamed in its place."""
    content = json.loads(data)
    mappings = [content, *(holder[key] for holder, key in _places(content) if isinstance(holder[key], dict))]
    mapping = random.choice([mapping for mapping in mappings if mapping])
    old = random.choice(list(mapping))
    renamed = [(_misspelt(old, random) if key == old else key, value) for key, value in mapping.items()]
    mapping.clear()
    mapping.update(renamed)
    return _as_written(content, data)


BYTES: Mapping[str, Change] = {
    "bits flipped": flip_bits,
    "truncated": truncate,
    "doubled": double,
    "pieces swapped": swap,
    "filled with zeros": fill_with_zeros,
    "appended": append,
}
JSON: Mapping[str, Change] = {
    "line ends changed": change_line_ends,
    "value changed": change_value,
    "key renamed": rename_key,
}


def _places(content: Any) -> list[tuple[Any, Any]]:
    """Every container with each of its keys or positions."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    found: list[tuple[Any, Any]] = []
    for key, value in items:
        found += [(content, key), *_places(value)]
    return found


def _misspelt(key: str, random: Random) -> str:
    return random.choice([f"{key}_", key[1:] or "x", key.upper() if key.upper() != key else f"{key}x"])


def _as_written(content: Any, data: bytes) -> bytes:
    text = json.dumps(content, ensure_ascii=False, indent=1)
    return text.encode(errors="surrogatepass") + (b"\n" if data.endswith(b"\n") else b"")
