"""What retention took of the finished clips, so that nobody later takes them for lost.

removed/<stage>/<moment>-<token>.json      {"at": ..., "keys": [...]}, written before the first of them goes
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Sequence
from datetime import datetime

from magi2.artifacts.seal import check_seal, seal_json
from magi2.artifacts.store import ArtifactStore
from magi2.errors import CorruptedArtifactError, InfrastructureError

logger = logging.getLogger(__name__)

_FOLDER = "removed"
_NO_NOTE = (ValueError, LookupError, TypeError, AttributeError)


def note_removals(store: ArtifactStore, stage: str, keys: Sequence[str], at: datetime) -> None:
    """Write down that retention removes these artifacts at this moment, with a time zone."""
    name = f"{_FOLDER}/{stage}/{at:%Y%m%dT%H%M%S}-{secrets.token_hex(4)}.json"
    note = json.dumps({"at": at.isoformat(), "keys": list(keys)}, indent=1)
    store.put_document(name, seal_json(note.encode(), name))


def read_removals(store: ArtifactStore, stage: str) -> dict[str, datetime]:
    """When retention last removed each artifact, by key; it may have been made anew since.

    A note that cannot be read says nothing, and the log names it.
    """
    removed: dict[str, datetime] = {}
    for name in store.list_documents(f"{_FOLDER}/{stage}"):
        try:
            data = store.get_document(name) or b""
            note = json.loads(data)
            if note.keys() != {"at", "keys"}:  # else it is of a time when notes carried no digest
                check_seal(data, name, place=name)
            at = datetime.fromisoformat(note["at"])
            removed |= {key: max(at, removed.get(key, at)) for key in note["keys"]}
        except (
            ValueError,
            RecursionError,
            LookupError,
            TypeError,
            AttributeError,
            CorruptedArtifactError,
            InfrastructureError,
        ) as error:
            logger.warning("%s is no note of what was removed: %s", name, error)
    return removed
