"""Where the documents of a batch lie in the store, and the only way to read and write them; torch-free.

batches/<batch_id>/batch.json                        name, source, options, resolved profiles, refused rows, counts
batches/<batch_id>/cached.json                       clips that were finished when the batch was planned
batches/<batch_id>/shards/<shard>.json               clips that one task renders with one load of the weights
batches/<batch_id>/results/<shard>.<stage>.json      what the first attempt at a stage made of a shard's clips
batches/<batch_id>/failures/<shard>.<stage>.json     why it ended without results
batches/<batch_id>/*/<shard>.<stage>.<attempt>.json  the same of a later attempt
batches/<batch_id>/deliveries/<clip_id>.json         where a clip was brought, and under which name
batches/<batch_id>/report.json, report.md            what became of the batch, written when its run has ended

Every attempt has names of its own, so that a late one takes nothing from a later one, whatever the store; the highest
counts.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Set
from functools import cached_property
from itertools import groupby
from typing import Any, TypeVar

from pydantic import ValidationError

from magi2.artifacts.ahead import in_order
from magi2.artifacts.damage import look_twice, what_came
from magi2.artifacts.seal import SEAL, check_seal, seal_json
from magi2.artifacts.store import ArtifactStore
from magi2.batches.schema import (
    PLAN_AGAIN,
    SEALED_SINCE,
    VERSION,
    BatchDocument,
    DeliveryDocument,
    Document,
    FailureDocument,
    FinishedDocument,
    ReportDocument,
    ResultsDocument,
    ShardDocument,
    WrittenResults,
)
from magi2.errors import CorruptedArtifactError, InfrastructureError, InputError, Magi2Error
from magi2.inputs.text import quoted
from magi2.types import StageName

logger = logging.getLogger(__name__)

FOLDER = "batches"
_READERS = 4  # results read at once: those of a large shard hold a megabyte of manifests
_ABSENT = f"{FOLDER}/absent"  # no batch has a document of this name
_SHARD_NAME = re.compile(rf"{FOLDER}/[^/]+/shards/[0-9]+\.json")
_ATTEMPT_NAME = re.compile(
    rf"(?P<work>{FOLDER}/[^/]+/(?P<folder>results|failures)/[0-9]+\.({'|'.join(StageName)}))(\.(?P<attempt>[1-9][0-9]{{0,8}}))?\.json"
)
_DELIVERY_NAME = re.compile(rf"{FOLDER}/[^/]+/deliveries/[0-9a-f]{{64}}\.json")
_DELIVERY_AGAIN = "clear the deliver task in Airflow, which finds what it brought and writes this again"
_STAGE_AGAIN = "clear the stage's task in Airflow, which then reuses what is stored and writes this again"
_LEASE_AGAIN = "the batch's next stage writes it again"
_REPORT_AGAIN = "clear the report task of its run, which writes it again"

_KINDS = (
    *(BatchDocument, FinishedDocument, ShardDocument, ResultsDocument, FailureDocument, ReportDocument),
    DeliveryDocument,
)
_KEYS = frozenset(key for kind in _KINDS for key in kind.model_fields)

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


def results_name(batch_id: str, shard: int, stage: StageName, attempt: int = 1) -> str:
    """What an attempt at a stage made of a shard."""
    return _attempt_name("results", batch_id, shard, stage, attempt)


def failure_name(batch_id: str, shard: int, stage: StageName, attempt: int = 1) -> str:
    """Why an attempt at a stage of a shard ended without results."""
    return _attempt_name("failures", batch_id, shard, stage, attempt)


def delivery_name(batch_id: str, clip_id: str) -> str:
    """Where a clip was brought."""
    return f"{batch_folder(batch_id)}/deliveries/{clip_id}.json"


def is_delivery_name(name: str) -> bool:
    """Whether a document of this name tells where a clip was brought."""
    return _DELIVERY_NAME.fullmatch(name) is not None


def newest_attempts(store: ArtifactStore, names: Iterable[str]) -> list[str]:
    """Of the works that results or failures of one batch are named for, those that the store has: of each the name of
    its highest attempt.
    """
    works = [work_of(name) for name in names]
    folders = {work.rpartition("/")[0] for work in works}
    newest = {work: name for folder in folders for work, name in _newest(store.list_documents(folder)).items()}
    return [newest[work] for work in works if work in newest]


def work_of(name: str) -> str:
    """The name of results or of a failure without the attempt: the same for all of them. Raises InputError."""
    found = _ATTEMPT_NAME.fullmatch(name)
    if found is None:
        raise InputError(f"{name} is no name of results or of a failure")
    return found["work"]


def newest_results(store: ArtifactStore, folder: str = FOLDER) -> Iterator[str]:
    """The names of the results that count, in all batches or in one whose `folder` is given."""
    for _, names in groupby(store.list_documents(folder), key=lambda name: name.rpartition("/")[0]):
        yield from _newest(name for name in names if "/results/" in name).values()


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
    """The batch's own document. Raises InputError when there is none, else as `find_document` does."""
    found = find_document(store, batch_name(batch_id), BatchDocument)
    if found is None:
        hint = f"there is no batch {quoted(batch_id)}; magi2 status lists them"
        raise InputError(f"{batch_name(batch_id)} is not in the store {store.url}", hint=hint)
    return found


def load_finished(store: ArtifactStore, batch_id: str) -> FinishedDocument:
    """The clips that were finished when the batch was planned. Raises as `read_document` does."""
    return read_document(store, finished_name(batch_id), FinishedDocument)


def load_shard_document(store: ArtifactStore, batch_id: str, shard: int) -> ShardDocument:
    """A shard's document. Raises as `read_document` and `check_shard` do."""
    document = read_document(store, shard_name(batch_id, shard), ShardDocument)
    check_shard(document, batch_id, shard)
    return document


def check_shard(document: ShardDocument, batch_id: str, shard: int) -> None:
    """Raises CorruptedArtifactError when a document is another shard's, or has clips of another profile than its own.

    Its own digest says that already, where it has one.
    """
    name = shard_name(batch_id, shard)
    if (document.batch_id, document.shard) != (batch_id, shard):
        message = f"{name}: is shard {document.shard} of batch {document.batch_id}"
        raise CorruptedArtifactError(message, hint=PLAN_AGAIN)
    for clip in document.clips:
        if clip.profile_digest != document.profile_digest:
            wanted, found = document.profile_digest[:12], clip.profile_digest[:12]
            message = f"{name}: clip {clip.clip_id[:12]} has profile {found}, the shard {wanted}"
            raise CorruptedArtifactError(message, hint=PLAN_AGAIN)


def load_report(store: ArtifactStore, batch_id: str) -> ReportDocument | None:
    """The report that the batch's last run left, None while there is none. Raises as `find_document` does."""
    return find_document(store, report_name(batch_id), ReportDocument)


def all_results(
    store: ArtifactStore, folder: str = FOLDER, *, unreadable: dict[str, str] | None = None
) -> Iterator[ResultsDocument]:
    """The results that count of every batch, or of the one whose `folder` is given.

    Those that are damaged, of a newer version, or that the store does not give though it gives others, are left out and
    entered in `unreadable`, by name with the reason, and logged. Without it the first of them raises, as
    `find_document` does.
    """
    for name in newest_results(store, folder):
        try:
            found = find_document(store, name, ResultsDocument)
        except Magi2Error as error:
            if unreadable is None:
                raise
            unreadable[name] = fault_of(store, error)
            logger.warning("left out: %s", error)
            continue
        if found:
            yield found


class KnownManifests:
    """The manifests of a stage that results carry, of the works of these names or of all batches, with their keys.

    Results that cannot be read, or are of a version that wrote none, know of none.
    """

    def __init__(self, store: ArtifactStore, names: Iterable[str] | None = None) -> None:
        self._store = store
        self._given = names

    def __call__(self, stage: str, /) -> Iterator[tuple[str, bytes]]:
        names = (name for name in self._names if name.split("/")[-1].split(".")[1] == stage)
        for manifests in in_order(self._manifests, names, threads=_READERS):
            yield from ((key, text.encode()) for key, text in manifests.items())

    @cached_property
    def _names(self) -> list[str]:
        return list(newest_results(self._store) if self._given is None else self._given)

    def _manifests(self, name: str) -> dict[str, str]:
        try:
            found = find_document(self._store, name, WrittenResults)
        except Magi2Error as error:
            logger.warning("its manifests are read one by one: %s", fault_of(self._store, error))
            return {}
        return found.manifests if found else {}


def find_faults(store: ArtifactStore, batch_id: str, *, but: Set[str] = frozenset()) -> Iterator[tuple[str, str]]:
    """The documents of a batch that cannot be read, by name with the reason, `but` some that were read just now."""
    for name in store.list_documents(batch_folder(batch_id)):
        kind = None if name in but else _kind_of(name, batch_id)
        try:
            if kind is not None:
                find_document(store, name, kind)
        except Magi2Error as error:
            yield name, fault_of(store, error)


def fault_of(store: ArtifactStore, error: Magi2Error) -> str:
    """What is wrong with one document, or one artifact. Raises `error` when the store does not answer at all."""
    if isinstance(error, InfrastructureError):
        try:
            store.get_document(_ABSENT)
        except InfrastructureError:
            raise error from None
    return str(error)


def read_document(store: ArtifactStore, name: str, kind: type[T]) -> T:
    """A document. Raises InputError when it is not in the store, else as `find_document` does."""
    found = find_document(store, name, kind)
    if found is None:
        raise InputError(f"{name} is not in the store {store.url}")
    return found


def find_document(store: ArtifactStore, name: str, kind: type[T]) -> T | None:
    """A document as a `kind`, or None when it is not in the store.

    Raises: CorruptedArtifactError naming the document, what is wrong with it and who writes it again, when it is no
    such document or not the one that was written; InputError when a newer version of this program wrote it.
    """
    return look_twice(lambda fresh: _find_document(store, name, kind, fresh=fresh))


def _find_document(store: ArtifactStore, name: str, kind: type[T], *, fresh: bool) -> T | None:
    data = store.get_document(name, fresh=fresh)
    if data is None:
        return None
    hint = _who_writes(name)
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        message = f"{name}: not a JSON document: {error}; it has {what_came(data)}"
        raise CorruptedArtifactError(message, hint=hint) from error
    version = content.get("version", 1) if isinstance(content, dict) else 1
    if type(version) is not int or version < 1:
        message = f"{name}: version: {version!r:.80} is no version, expected 1 to {VERSION}"
        raise CorruptedArtifactError(message, hint=hint)
    if version > VERSION:
        message = f"{name} has version {version}, this magi2 reads up to {VERSION}: it was written by a newer magi2"
        raise InputError(message, hint="update magi2 here")
    try:
        found = kind.model_validate(content if version == VERSION else kind.upgraded(content))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the document"
        raise CorruptedArtifactError(f"{name}: {place}: {first['msg']}", hint=hint) from error
    if version >= SEALED_SINCE or not _was_never_sealed(content):
        check_seal(data, name, place=f"{name} in the store {store.url}", hint=hint)
    return found


def write_document(store: ArtifactStore, name: str, document: Document) -> None:
    """Store or replace a document."""
    store.put_document(name, seal_json(document.model_dump_json(indent=1).encode(), name))


def remove_batch(store: ArtifactStore, batch_id: str) -> None:
    """Remove all documents of a batch; those in folders first, so that no empty folder stays on a disk."""
    for name in sorted(store.list_documents(batch_folder(batch_id)), key=lambda name: -name.count("/")):
        store.remove_document(name)


def _was_never_sealed(content: Any) -> bool:
    """Whether a document of an older version begins as they all did, with a key that documents have and no digest.

    A few bits can make the names of both the digest and the version others.
    """
    return isinstance(content, list) or (SEAL not in content and next(iter(content), None) in _KEYS)


def _attempt_name(folder: str, batch_id: str, shard: int, stage: StageName, attempt: int) -> str:
    number = "" if attempt == 1 else f".{attempt}"
    return f"{batch_folder(batch_id)}/{folder}/{shard}.{stage.value}{number}.json"


def _newest(names: Iterable[str]) -> dict[str, str]:
    """Of each work the name of its highest attempt."""
    found = [match for name in names if (match := _ATTEMPT_NAME.fullmatch(name))]
    return {match["work"]: match[0] for match in sorted(found, key=lambda match: int(match["attempt"] or 1))}


def _kind_of(name: str, batch_id: str) -> type[Document] | None:
    """What a document must be by its name, None for one that no program reads."""
    kinds: dict[str, type[Document]] = {
        batch_name(batch_id): BatchDocument,
        finished_name(batch_id): FinishedDocument,
        report_name(batch_id): ReportDocument,
    }
    if found := _ATTEMPT_NAME.fullmatch(name):
        return ResultsDocument if found["folder"] == "results" else FailureDocument
    if is_delivery_name(name):
        return DeliveryDocument
    return ShardDocument if _SHARD_NAME.fullmatch(name) else kinds.get(name)


def _who_writes(name: str) -> str:
    """What to do for the document to be written again."""
    if _ATTEMPT_NAME.fullmatch(name):
        return _STAGE_AGAIN
    if is_delivery_name(name):
        return _DELIVERY_AGAIN
    if not name.startswith(f"{FOLDER}/"):
        return _LEASE_AGAIN
    return _REPORT_AGAIN if name.endswith("/report.json") else PLAN_AGAIN
