"""Where a store puts what was condemned as damaged, for people to look at, until it expires.

quarantine/<moment>-<token>/<name in the store>     what was moved there: manifest, payloads, or a document
quarantine/<moment>-<token>/note.json               what it is, when, why and by whom it was moved; written last
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from magi2.artifacts.blobs import Blobs
from magi2.artifacts.manifest import Manifest
from magi2.artifacts.store import (
    MANIFEST_NAME,
    Condemned,
    artifact_prefix,
    document_path,
    is_attempt_file,
    new_attempt,
)
from magi2.errors import MAX_REASON, CorruptedArtifactError, cut

logger = logging.getLogger(__name__)

QUARANTINE = "quarantine"
_NOTE = "note.json"
_MOMENT = "%Y%m%dT%H%M%SZ"


class Quarantine(Blobs):
    """Moves damaged artifacts and documents aside. Two who condemn one thing at once may keep two copies of it."""

    def condemn(self, stage: str, key: str, *, why: str) -> bool:
        prefix = artifact_prefix(stage, key)
        files = {blob.name.removeprefix(f"{prefix}/") for blob in self._list(str(prefix))}
        if MANIFEST_NAME not in files:
            return False
        # Files that an unreadable manifest does not name may be of an attempt under way: these stay, for a sweep.
        owned = [MANIFEST_NAME, *self._named_files(f"{prefix}/{MANIFEST_NAME}")]
        kept = sorted(name for name in files if name in owned or is_attempt_file(name))
        self._set_aside([f"{prefix}/{name}" for name in kept], f"{stage}/{key}", why)
        for name in owned:
            self._delete(f"{prefix}/{name}")
        return True

    def condemn_document(self, name: str, *, why: str) -> bool:
        blob = str(document_path(name))
        if self._size(blob) is None:
            return False
        self._set_aside([blob], name, why)
        self._delete(blob)
        return True

    def condemned(self) -> Iterator[Condemned]:
        for folder, names in self._folders():
            yield self._described(folder, names)

    def expire_condemned(self, *, older_than_days: float, dry_run: bool = False) -> list[str]:
        latest = datetime.fromtimestamp(self._clock(), UTC) - timedelta(days=older_than_days)
        old = [(folder, names) for folder, names in self._folders() if _moment_of(folder) <= latest]
        for folder, names in old if not dry_run else []:
            note = f"{folder}/{_NOTE}"  # last, so that what an interrupted expiry leaves still says what it is
            for name in [*(name for name in names if name != note), note]:
                self._delete(name)
        return [folder for folder, _ in old]

    def _set_aside(self, names: Sequence[str], what: str, why: str) -> None:
        """Copy blobs to a folder of their own, then the note; what was removed meanwhile is left out."""
        now = datetime.fromtimestamp(self._clock(), UTC)
        folder = f"{QUARANTINE}/{now.strftime(_MOMENT)}-{new_attempt()}"
        copied = [name for name in names if self._copy(name, f"{folder}/{name}")]
        note = {
            "what": what,
            "at": now.isoformat(),
            "why": cut(why, MAX_REASON),
            "by": f"process {os.getpid()} on {socket.gethostname()}",
            "files": copied,
            "size_bytes": sum(self._size(f"{folder}/{name}") or 0 for name in copied),
        }
        self._create(f"{folder}/{_NOTE}", json.dumps(note, ensure_ascii=False, indent=1).encode())
        logger.error("%s is moved to %s: %s", what, self._place(folder), why)

    def _named_files(self, manifest: str) -> list[str]:
        """The payload files of a manifest; none when it cannot be read."""
        try:
            data = self._uncached()._read(manifest)
            read = None if data is None else Manifest.from_bytes(data, place=self._place(manifest))
        except CorruptedArtifactError:
            return []
        return [payload.file for payload in read.payloads.values()] if read else []

    def _folders(self) -> Iterator[tuple[str, list[str]]]:
        """The folders of the quarantine with the names of all that is in them; what has no moment is not ours."""
        names = (blob.name for blob in self._list(QUARANTINE))
        for folder, members in groupby(names, key=lambda name: "/".join(name.split("/")[:2])):
            try:
                _moment_of(folder)
            except ValueError:
                logger.warning("left as it is, nobody moved this here: %s", self._place(folder))
                continue
            yield folder, list(members)

    def _described(self, folder: str, names: list[str]) -> Condemned:
        try:
            note: dict[str, Any] = json.loads(self._read(f"{folder}/{_NOTE}") or b"")
            values = {name: str(note[name]) for name in ("what", "why", "by")}
            return Condemned(
                folder, at=datetime.fromisoformat(note["at"]), size_bytes=int(note["size_bytes"]), **values
            )
        except (ValueError, KeyError, TypeError, RecursionError, CorruptedArtifactError):
            what = min(names).removeprefix(f"{folder}/")
            return Condemned(folder, what, _moment_of(folder), "its note cannot be read", "unknown", 0)


def _moment_of(folder: str) -> datetime:
    """When something was moved, from the name of its folder. Raises ValueError for another name."""
    moment, _, _ = folder.removeprefix(f"{QUARANTINE}/").partition("-")
    return datetime.strptime(moment, _MOMENT).replace(tzinfo=UTC)
