"""Whether a store is the one that a catalog speaks of.

Both carry one identity, made when neither has one. Whoever lacks it, as a new catalog or a store of an older version
does, takes the other's if the store is complete: if it has nine in ten of the delivered clips that the catalog knows.
A folder that is not mounted, another prefix or a foreign catalog is so found out before anything is written.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from uuid import uuid4

from sqlalchemy import Connection, exists, select, update

from magi2.artifacts.removals import read_removals
from magi2.artifacts.store import ArtifactStore
from magi2.catalog.records import ClipState
from magi2.catalog.repository import Catalog
from magi2.catalog.statements import upsert
from magi2.catalog.tables import ArtifactRow, BatchClipRow, BatchRow, IdentityRow
from magi2.errors import IdentityError
from magi2.types import StageName

DOCUMENT = "identity.json"
MAY_MISS = 0.1
"""The share of the delivered clips that a store may miss and still be called complete."""

FOREIGN = "the store belongs to another catalog: each has an identity, and they differ"
UNKNOWN = "the catalog has an identity and the store has none: it is another one, or not all of it is there"
_DAMAGED_HINT = "remove the document: the store gets an identity again if it is complete"
_NUMBER = 1  # of the table's only row
_PATTERN = re.compile(r"[0-9a-f]{32}")


def require_match(store: ArtifactStore, catalog: Catalog, *, dry_run: bool = False) -> None:
    """Return if the store is the catalog's; whichever has no identity yet is given it, unless in a dry run.

    One read of each when both have one. Raises: IdentityError when they do not belong together, or when one has no
    identity and the store is not complete; InfrastructureError.
    """
    stored, entered = stored_identity(store), catalog.database.read(_entered_identity)
    if stored is not None and stored == entered:
        return
    fault = FOREIGN if stored and entered else _incompleteness(store, catalog)
    if fault:
        raise _refusal(store, catalog, fault)
    if not dry_run:
        _join(store, catalog, stored or entered)


def require_complete(store: ArtifactStore, catalog: Catalog, *, force: bool = False) -> str:
    """The common identity, if the store is the catalog's and complete; a refusal is entered in the catalog, for pages.

    With `force` nothing is asked, and a catalog of another identity takes the store's.
    Raises: IdentityError, InfrastructureError.
    """
    stored, entered = stored_identity(store), catalog.database.read(_entered_identity)
    fault = None
    if not force:
        is_foreign = stored is not None and entered is not None and stored != entered
        fault = FOREIGN if is_foreign else _incompleteness(store, catalog)
    catalog.database.write(_enter_fault, fault)
    if fault:
        raise _refusal(store, catalog, fault)
    return _join(store, catalog, stored or entered, replace=force)


def require_identity(store: ArtifactStore, catalog: Catalog, identity: str) -> None:
    """Return if the store still has this identity. Raises: IdentityError, as when its folder was unmounted since."""
    if stored_identity(store) != identity:
        raise _refusal(store, catalog, "the store went away, or was replaced by another, in the midst of the work")


def find_mismatch(store: ArtifactStore, catalog: Catalog) -> str | None:
    """What speaks against the store being the catalog's, as far as a quick look tells; None when nothing does.

    It names neither's address. Nothing is written. Raises: InfrastructureError.
    """
    stored, entered = stored_identity(store), catalog.database.read(_entered_identity)
    if stored is not None:
        return FOREIGN if entered not in (None, stored) else None
    if store.is_empty():
        return catalog.database.read(_emptiness)
    return UNKNOWN if entered else None


def last_refusal(catalog: Catalog) -> str | None:
    """Why the catalog was last not brought in line with its store, if it was not."""
    return catalog.database.read(lambda connection: connection.scalar(select(IdentityRow.fault)))


def stored_identity(store: ArtifactStore) -> str | None:
    """The store's identity, None when it has none. Raises: IdentityError when it is damaged, InfrastructureError."""
    content = store.get_document(DOCUMENT)
    return None if content is None else _parse(store, content)


def _parse(store: ArtifactStore, content: bytes) -> str:
    try:
        identity = json.loads(content)["identity"]
        if _PATTERN.fullmatch(identity):
            return str(identity)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise IdentityError(f"store {store.url}: document {DOCUMENT} holds no identity", hint=_DAMAGED_HINT)


def _incompleteness(store: ArtifactStore, catalog: Catalog) -> str | None:
    """What the store lacks of what the catalog knows, if that is too much; reads no clip, but lists them all."""
    known, missing = _count_delivered(store, catalog)
    if missing > MAY_MISS * known:
        return f"the store misses {missing} of the {known} delivered clips that the catalog knows"
    return catalog.database.read(_emptiness) if store.is_empty() else None


def _count_delivered(store: ArtifactStore, catalog: Catalog) -> tuple[int, int]:
    """How many delivered clips the catalog knows and the store misses; what retention removed is in neither."""
    delivered = catalog.database.read(_delivered)
    if not delivered:
        return 0, 0
    stored, removed = set(store.keys(StageName.MUX)), read_removals(store, StageName.MUX)
    known = missing = 0
    for _, key, created_at in delivered:
        is_stored = key in stored
        if is_stored or key not in removed or removed[key] < created_at:
            known, missing = known + 1, missing + (not is_stored)
    return known, missing


def _delivered(connection: Connection) -> list[tuple[str, str, datetime]]:
    """Clip, key and creation of what was delivered, each clip once."""
    query = (
        select(BatchClipRow.clip_id, ArtifactRow.key, ArtifactRow.created_at)
        .join(ArtifactRow, ArtifactRow.key == BatchClipRow.artifact_key)
        .where(BatchClipRow.state == ClipState.DONE)
        .distinct()
    )
    return [(clip_id, key, created_at) for clip_id, key, created_at in connection.execute(query)]


def _emptiness(connection: Connection) -> str | None:
    """What an empty store lacks."""
    is_used = connection.scalar(select(exists().select_from(BatchRow)))
    is_used = is_used or connection.scalar(select(exists().select_from(ArtifactRow)))
    return "the store is empty and the catalog is not" if is_used else None


def _join(store: ArtifactStore, catalog: Catalog, identity: str | None, *, replace: bool = False) -> str:
    """Give both one identity, of whichever process is first: the document decides, which nobody can replace."""
    content = json.dumps({"identity": identity or uuid4().hex}).encode()
    stored = _parse(store, store.create_document(DOCUMENT, content))
    if catalog.database.write(_enter_identity, stored, replace=replace) != stored:
        raise _refusal(store, catalog, FOREIGN)
    return stored


def _refusal(store: ArtifactStore, catalog: Catalog, fault: str) -> IdentityError:
    return IdentityError(f"store {store.url}, catalog {catalog.database.place}: {fault}")


def _entered_identity(connection: Connection) -> str | None:
    return connection.scalar(select(IdentityRow.identity))


def _enter_identity(connection: Connection, identity: str, *, replace: bool) -> str | None:
    """Enter an identity where there is none, or replace it; the one that stands."""
    _make_row(connection)
    query = update(IdentityRow).values(identity=identity)
    connection.execute(query if replace else query.where(IdentityRow.identity.is_(None)))
    return _entered_identity(connection)


def _enter_fault(connection: Connection, fault: str | None) -> None:
    _make_row(connection)
    connection.execute(update(IdentityRow).values(fault=fault))


def _make_row(connection: Connection) -> None:
    upsert(connection, IdentityRow, [{"number": _NUMBER, "identity": None, "fault": None}])
