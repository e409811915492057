"""Seals: JSON files whose first member is the digest of their name and of every other byte they have."""

from __future__ import annotations

import hashlib
import re

from magi2.errors import CorruptedArtifactError

SEAL = "sha256"
"""The member's name."""
_HEAD = re.compile(rb'\{\n "' + SEAL.encode() + rb'": "([0-9a-f]{64})",\n')


def seal_json(content: bytes, name: str) -> bytes:
    """An indented JSON object of at least one member, sealed; `name` is what it is looked for by."""
    return b'{\n "%s": "%s",\n' % (SEAL.encode(), _digest(content, name).encode()) + content.removeprefix(b"{\n")


def check_seal(data: bytes, name: str, *, place: str, hint: str | None = None) -> None:
    """Raises CorruptedArtifactError that names `place` unless `data` is what `seal_json` gave for `name`."""
    head = _HEAD.match(data)
    if head is None:
        raise CorruptedArtifactError(f"{place}: does not begin with its {SEAL}: it was changed or cut", hint=hint)
    found = _digest(b"{\n" + data[head.end() :], name)
    if found != head[1].decode():
        what = f"SHA-256 is {found}, it carries {head[1].decode()}"
        raise CorruptedArtifactError(f"{place}: {what}: it was changed, or belongs elsewhere", hint=hint)


def _digest(content: bytes, name: str) -> str:
    return hashlib.sha256(name.encode() + b"\n" + content).hexdigest()
