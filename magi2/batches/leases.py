"""Leases: the artifacts that the clips of unfinished batches need, so that retention leaves them; torch-free.

leases/<batch_id>.<shard>.json      what the clips of a shard need, by stage, as far as it is known
leases/<batch_id>.finished.json     the files that the plan found finished
leases/removing-<token>.json        what a retention is about to remove; gone when it is done with it

Nobody waits for a lock. A stage first writes its lease and then asks what is about to be removed; retention first says
what it is about to remove and then reads the leases. One of the two sees the other, whatever their hosts: retention
leaves what is leased, and a stage waits for what is being removed and looks for its artifacts only then. Both write
into the folder that they list, which makes a network file system show them what others wrote there.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from magi2.artifacts.ahead import in_order
from magi2.artifacts.store import ArtifactStore, new_attempt
from magi2.batches.documents import find_document, load_report, write_document
from magi2.batches.results import read_results
from magi2.batches.schema import LeaseDocument
from magi2.errors import CorruptedArtifactError, InfrastructureError, InputError, Magi2Error
from magi2.recipes.lookup import StoredClip
from magi2.types import StageName

logger = logging.getLogger(__name__)

_FOLDER = "leases"
_REMOVING = f"{_FOLDER}/removing-"
_KEY = re.compile(rb"[0-9a-f]{64}")
REMOVAL_S = 300.0
"""So long after it was announced no removal begins any more."""
LONGEST_REMOVAL_S = 900.0
"""An announcement that stays so long is of a process that died: the last removal that it let begin has ended."""
_PAUSE_S = 0.5
_RENEWAL_S = 3600.0

Keys = Mapping[StageName, str]


@dataclass(frozen=True)
class Leases:
    """Keys that unfinished batches hold, and when a batch or a command last had to do with a key."""

    held: frozenset[str]
    last_use: Mapping[str, datetime]


def take_lease(store: ArtifactStore, batch_id: str, shard: int | None, clips: Mapping[str, Keys]) -> None:
    """Hold the artifacts of these clips, by id. What is found of them afterwards stays until the lease has ended.

    None stands for the clips that were finished when the batch was planned.
    """
    document = LeaseDocument(batch_id=batch_id, shard=shard, at=datetime.now(UTC), clips=clips)
    write_document(store, _name(batch_id, shard), document)
    await_removals(store, {key for keys in clips.values() for key in keys.values()})


def lease_for_stage(
    store: ArtifactStore, batch_id: str, shard: int, stage: StageName, clips: Mapping[str, StoredClip]
) -> None:
    """Hold what the clips of a shard need from a stage on.

    Their captions are read once in a batch, for encode: before, they are not settled, and later the lease knows them.
    """
    known = {} if stage is StageName.ENCODE else dict(_clips_of(store, batch_id, shard))
    if stage is not StageName.ENHANCE:
        known |= {clip_id: stored.keys for clip_id, stored in clips.items() if clip_id not in known}
    take_lease(store, batch_id, shard, known)


def end_lease(store: ArtifactStore, batch_id: str, shard: int) -> None:
    """Hold nothing more; that the artifacts were used now is still known."""
    document = find_document(store, _name(batch_id, shard), LeaseDocument)
    if document is not None:
        ended = document.model_copy(update={"at": datetime.now(UTC), "ended": True})
        write_document(store, _name(batch_id, shard), ended)


class LeaseKeeper:
    """Gives a shard's lease a sign of life now and then, while one of its stages takes long."""

    def __init__(self, store: ArtifactStore, batch_id: str, shard: int, lease_days: float) -> None:
        self._store, self._batch_id, self._shard = store, batch_id, shard
        self._pause_s = min(_RENEWAL_S, lease_days * 86400 / 4)
        self._renewed = time.monotonic()

    def after(self, check: Callable[[], None]) -> Callable[[], None]:
        """What is done before each clip: `check` raises if it may not begin, else the lease is renewed if due."""

        def before_clip() -> None:
            check()
            self.renew()

        return before_clip

    def renew(self) -> None:
        """Renew the lease if that is due; a store that is away now will be asked the next time."""
        if time.monotonic() - self._renewed < self._pause_s:
            return
        self._renewed = time.monotonic()
        name = _name(self._batch_id, self._shard)
        try:
            document = find_document(self._store, name, LeaseDocument)
            if document is not None:
                write_document(self._store, name, document.model_copy(update={"at": datetime.now(UTC)}))
        except Magi2Error as error:
            logger.warning("%s: not renewed: %s", name, error)


def read_leases(store: ArtifactStore, *, lease_days: float, now: datetime, unreadable: dict[str, str]) -> Leases:
    """What is held now. A lease that cannot be read holds all that it still names, and is entered in `unreadable`."""
    held: set[str] = set()
    last_use: dict[str, datetime] = {}
    batches: dict[str, list[LeaseDocument]] = {}
    for name, found in in_order(partial(_try_lease, store), _lease_names(store)):
        if isinstance(found, Magi2Error):
            unreadable[name] = str(found)
            held |= named_keys(store, name)
        elif found is not None:
            batches.setdefault(found.batch_id, []).append(found)
    for documents in batches.values():
        for document in documents:
            for key in _keys(document):
                last_use[key] = max(document.at, last_use.get(key, document.at))
        if _is_alive(store, documents, timedelta(days=lease_days), now):
            held |= {key for document in documents for key in _needed(store, document)}
    return Leases(frozenset(held), last_use)


def sweep_leases(store: ArtifactStore, *, before: datetime) -> None:
    """Forget leases and announcements that were written before a moment: they hold nothing and no use is so old."""
    for name in list(store.list_documents(_FOLDER)):
        try:
            at = datetime.fromisoformat(json.loads(store.get_document(name) or b"{}")["at"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # named by `read_leases`
        if at < before:
            store.remove_document(name)


@contextmanager
def announced_removal(store: ArtifactStore, keys: Sequence[str]) -> Iterator[Callable[[], bool]]:
    """Say that artifacts are about to be removed; gives what tells whether there is time to begin with another one.

    Leases have to be read inside.
    """
    name = f"{_REMOVING}{new_attempt()}.json"
    began = time.monotonic()
    store.put_document(name, json.dumps({"at": datetime.now(UTC).isoformat(), "keys": list(keys)}).encode())
    try:
        yield lambda: time.monotonic() - began < REMOVAL_S
    finally:
        store.remove_document(name)


def await_removals(store: ArtifactStore, keys: Iterable[str]) -> None:
    """Return when nobody is about to remove any of these artifacts who has not seen the lease on them."""
    mine = set(keys)
    for name in list(store.list_documents(_FOLDER)) if mine else []:
        if not name.startswith(_REMOVING) or not mine & named_keys(store, name):
            continue
        logger.info("waits for a retention that is removing artifacts of these clips: %s", name)
        began = time.monotonic()
        while store.get_document(name) is not None:
            if time.monotonic() - began > LONGEST_REMOVAL_S:
                logger.warning("%s is of a process that died: it is removed", name)
                store.remove_document(name)
            time.sleep(_PAUSE_S)


def require_unremoved(store: ArtifactStore, keys: Iterable[str], removed: Iterable[str]) -> None:
    """Raise InfrastructureError when a file that was found finished was removed before the lease on it was read.

    `removed` are the keys of all that was ever removed.
    """
    for key in set(keys).intersection(removed):
        if store.find(StageName.MUX, key) is None:
            raise InfrastructureError(f"mux/{key} was removed while it was planned with", hint="plan it again")


def _name(batch_id: str, shard: int | None) -> str:
    return f"{_FOLDER}/{batch_id}.{'finished' if shard is None else shard}.json"


def _try_lease(store: ArtifactStore, name: str) -> tuple[str, LeaseDocument | Magi2Error | None]:
    """A lease and its name; in its place what is wrong with it. Raises InfrastructureError."""
    try:
        return name, find_document(store, name, LeaseDocument)
    except (CorruptedArtifactError, InputError) as error:
        return name, error


def _lease_names(store: ArtifactStore) -> Iterator[str]:
    return (name for name in store.list_documents(_FOLDER) if not name.startswith(_REMOVING))


def _clips_of(store: ArtifactStore, batch_id: str, shard: int) -> Mapping[str, Keys]:
    """What a lease knows; nothing when it cannot be read, since it is about to be written anew."""
    try:
        document = find_document(store, _name(batch_id, shard), LeaseDocument)
    except (CorruptedArtifactError, InputError) as error:
        logger.warning("made anew: %s", error)
        return {}
    return document.clips if document else {}


def _keys(document: LeaseDocument) -> set[str]:
    return {key for keys in document.clips.values() for key in keys.values()}


def _needed(store: ArtifactStore, document: LeaseDocument) -> set[str]:
    """What is held of a shard: everything, but of a clip that the batch delivered the delivered file alone."""
    if document.shard is None:
        return _keys(document)
    try:
        results = read_results(store, document.batch_id, document.shard, StageName.MUX)
    except (CorruptedArtifactError, InputError) as error:
        logger.warning("its clips count as undelivered: %s", error)
        results = ()
    delivered = {row.clip_id for row in results if row.has_artifact}
    return {
        key
        for clip_id, keys in document.clips.items()
        for stage, key in keys.items()
        if stage is StageName.MUX or clip_id not in delivered
    }


def _is_alive(store: ArtifactStore, documents: Sequence[LeaseDocument], limit: timedelta, now: datetime) -> bool:
    """Whether a batch still works: neither a command that ended nor silent for too long, and no report since."""
    last = max(document.at for document in documents)
    if now - last >= limit or any(document.ended for document in documents):
        return False
    try:
        report = load_report(store, documents[0].batch_id)
    except (CorruptedArtifactError, InputError) as error:
        logger.warning("the batch counts as unfinished: %s", error)
        return True
    return report is None or last > report.finished_at


def named_keys(store: ArtifactStore, name: str) -> set[str]:
    """Whatever looks like a key in a document."""
    return {key.decode() for key in _KEY.findall(store.get_document(name) or b"")}
