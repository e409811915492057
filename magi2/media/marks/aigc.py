"""The metadata entry `AIGC`: JSON that says that the content is made by AI, and by whom (GB 45438-2025)."""

from __future__ import annotations

import json

from magi2.inputs.text import load_json

AIGC_KEY = "AIGC"
GENERATED = "1"
"""The value of `Label` for what is known to be generated."""
AIGC_FIELDS = (
    "Label",
    "ContentProducer",
    "ProduceID",
    "ReservedCode1",
    "ContentPropagator",
    "PropagateID",
    "ReservedCode2",
)


def aigc_entry(producer: str, content_id: str) -> str:
    """The entry's text for content that `producer` knows by `content_id`; who propagates it fills in the rest."""
    values = dict.fromkeys(AIGC_FIELDS, "") | {
        "Label": GENERATED,
        "ContentProducer": producer,
        "ProduceID": content_id,
    }
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))


def parse_aigc(text: str) -> dict[str, str] | None:
    """The fields of an entry, None for text that is no such entry."""
    try:
        found = load_json(text)
    except ValueError:
        return None
    if not isinstance(found, dict) or found.keys() != set(AIGC_FIELDS):
        return None
    return found if all(isinstance(value, str) for value in found.values()) else None
