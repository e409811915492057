"""When damage is believed: one strange answer of a server, a proxy or a disk is none."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from magi2.errors import CorruptedArtifactError

logger = logging.getLogger(__name__)

T = TypeVar("T")


def look_twice(look: Callable[[bool], T]) -> T:
    """What `look(False)` finds or, when that is damaged, what `look(True)` finds, which has to read past all caches.

    Raises: CorruptedArtifactError when both find damage.
    """
    try:
        return look(False)
    except CorruptedArtifactError as error:
        logger.warning("is looked at again, past all caches: %s", error)
    return look(True)


def what_came(data: bytes, kind: str | None = None) -> str:
    """What came instead of what was expected, for people: its kind if that was said, its length and how it begins."""
    begin = " ".join(data[:40].decode(errors="replace").split())
    said = "".join(character for character in begin if character.isprintable())
    return ", ".join(filter(None, (kind, f"{len(data)} bytes", f"begins with {said!r}" if data else "")))
