"""Where the documents of a batch lie in the store, and the only way to read and write them; torch-free.

batches/<batch_id>/batch.json                        name, source, options, resolved profiles, refused rows, counts
batches/<batch_id>/cached.json                       clips that were finished when the batch was planned
batches/<batch_id>/shards/<shard>.json               clips that one task renders with one load of the weights
batches/<batch_id>/results/<shard>.<stage>.json      what the last attempt at a stage made of a shard's clips
batches/<batch_id>/failures/<shard>.<stage>.json     why a stage of a shard as a whole ended without results
batches/<batch_id>/report.json, report.md            what became of the batch, written when its run has ended
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from itertools import groupby
from typing import TypeVar

from pydantic import ValidationError

from magi2.artifacts.damage import look_twice, what_came
from magi2.artifacts.store import ArtifactStore
from magi2.batches.schema import (
    VERSION,
    BatchDocument,
    Document,
    FinishedDocument,
    ReportDocument,
    ResultsDocument,
    ShardDocument,
)
from magi2.errors import CorruptedArtifactError, InputError
from magi2.types import StageName

logger = logging.getLogger(__name__)

FOLDER = "batches"
_RESULTS_NAME = re.compile(rf"{FOLDER}/[^/]+/results/[0-9]+\.({'|'.join(StageName)})\.json")

T = TypeVar("T", bound=Document)


def batch_folder(batch_id: str) -> str:
    """The folder of a batch's documents."""
    return f"{FOLDER}/{batch_id}"


def batch_name(batch_id: str) -> str:
    """The batch's own document, which is written last: a batch that has it is planned."""
    return f"{batch_folder(batch_id)}/batch.json"


def finished_name(batch_id: str) -> str:
    """The clips that were finished when the batch was planned."""
    return f"{batch_folder(batch_id)}/cached.json"


def shard_name(batch_id: str, shard: int) -> str:
    """A shard's clips."""
    return f"{batch_folder(batch_id)}/shards/{shard}.json"


def results_name(batch_id: str, shard: int, stage: StageName) -> str:
    """What a stage made of a shard."""
    return f"{batch_folder(batch_id)}/results/{shard}.{stage.value}.json"


def failure_name(batch_id: str, shard: int, stage: StageName) -> str:
    """Why a stage of a shard ended without results."""
    return f"{batch_folder(batch_id)}/failures/{shard}.{stage.value}.json"


def report_name(batch_id: str) -> str:
    """The report, for programs."""
    return f"{batch_folder(batch_id)}/report.json"


def report_text_name(batch_id: str) -> str:
    """The report, for people."""
    return f"{batch_folder(batch_id)}/report.md"


def batch_ids(store: ArtifactStore) -> Iterator[str]:
    """The planned batches in the store."""
    names = (name.split("/") for name in store.list_documents(FOLDER))
    for batch_id, parts in groupby((name for name in names if len(name) > 2), key=lambda name: name[1]):
        if any("/".join(name) == batch_name(batch_id) for name in parts):
            yield batch_id


def is_planned(store: ArtifactStore, batch_id: str) -> bool:
    """Whether the store has the batch."""
    return store.get_document(batch_name(batch_id)) is not None


def load_batch(store: ArtifactStore, batch_id: str) -> BatchDocument:
    """The batch's own document. Raises as `read_document` does."""
    return read_document(store, batch_name(batch_id), BatchDocument)


def load_finished(store: ArtifactStore, batch_id: str) -> FinishedDocument:
    """The clips that were finished when the batch was planned. Raises as `read_document` does."""
    return read_document(store, finished_name(batch_id), FinishedDocument)


def load_shard_document(store: ArtifactStore, batch_id: str, shard: int) -> ShardDocument:
    """A shard's document. Raises as `read_document` does."""
    return read_document(store, shard_name(batch_id, shard), ShardDocument)


def load_report(store: ArtifactStore, batch_id: str) -> ReportDocument | None:
    """The report that the batch's last run left, None while there is none. Raises as `find_document` does."""
    return find_document(store, report_name(batch_id), ReportDocument)


def all_results(
    store: ArtifactStore, folder: str = FOLDER, *, unreadable: dict[str, str] | None = None
) -> Iterator[ResultsDocument]:
    """The results of every batch, or of the one whose `folder` is given.

    Those that are damaged, or of a newer version, are left out and entered in `unreadable`, by name with the reason,
    and logged. Without it the first of them raises, as `find_document` does.
    """
    for name in store.list_documents(folder):
        if not _RESULTS_NAME.fullmatch(name):
            continue
        try:
            found = find_document(store, name, ResultsDocument)
        except (CorruptedArtifactError, InputError) as error:
            if unreadable is None:
                raise
            logger.warning("left out: %s", error)
            unreadable[name] = str(error)
            continue
        if found:
            yield found


def read_document(store: ArtifactStore, name: str, kind: type[T]) -> T:
    """A document. Raises InputError when it is not in the store, else as `find_document` does."""
    found = find_document(store, name, kind)
    if found is None:
        raise InputError(f"{name} is not in the store {store.url}")
    return found


def find_document(store: ArtifactStore, name: str, kind: type[T]) -> T | None:
    """A document as a `kind`, or None when it is not in the store.

    Raises: CorruptedArtifactError naming the document and the field when it is no such document, InputError when a
    newer version of this program wrote it.
    """
    return look_twice(lambda fresh: _find_document(store, name, kind, fresh=fresh))


def _find_document(store: ArtifactStore, name: str, kind: type[T], *, fresh: bool) -> T | None:
    data = store.get_document(name, fresh=fresh)
    if data is None:
        return None
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptedArtifactError(f"{name}: not a JSON document: {error}; it has {what_came(data)}") from error
    version = content.get("version", 1) if isinstance(content, dict) else 1
    if type(version) is not int or version < 1:
        raise CorruptedArtifactError(f"{name}: version: {version!r:.80} is no version, expected 1 to {VERSION}")
    if version > VERSION:
        message = f"{name} has version {version}, this magi2 reads up to {VERSION}: it was written by a newer magi2"
        raise InputError(message, hint="update magi2 here")
    try:
        return kind.model_validate(content if version == VERSION else kind.upgraded(content))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the document"
        raise CorruptedArtifactError(f"{name}: {place}: {first['msg']}") from error


def write_document(store: ArtifactStore, name: str, document: Document) -> None:
    """Store or replace a document."""
    store.put_document(name, document.model_dump_json(indent=1).encode())


def remove_batch(store: ArtifactStore, batch_id: str) -> None:
    """Remove all documents of a batch."""
    for name in list(store.list_documents(batch_folder(batch_id))):
        store.remove_document(name)
