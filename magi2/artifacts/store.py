"""What every artifact store promises, and the names it uses. One contract test suite runs against all of them.

Layout, the same on disk and in a bucket:

    artifacts/<stage>/<key[:2]>/<key>/<stem>.<attempt>.<suffix>    payloads, their attempt's random token in the name
    artifacts/<stage>/<key[:2]>/<key>/manifest.json                written last and create-only
    documents/<name>                                               reports, replaced as a whole
    quarantine/<moment>-<token>/<name>                             what was damaged, see `magi2.artifacts.quarantine`

A payload's file name carries its attempt, so two writers of one artifact never touch each other's files: the loser
takes away its own, and a removal only ever deletes what the removed manifest named.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Protocol, TypeAlias, TypeVar

from magi2.artifacts.manifest import Manifest, ManifestDraft, Payload, check_payload_name
from magi2.artifacts.recipe import check_stage, is_digest, sha256_file
from magi2.artifacts.tensors import SUFFIX as TENSORS_SUFFIX
from magi2.artifacts.tensors import read_specs
from magi2.errors import ContractError, CorruptedArtifactError, InfrastructureError, InputError

MANIFEST_NAME = "manifest.json"
ARTIFACTS, DOCUMENTS = "artifacts", "documents"
_DOCUMENT_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=@-]*(/[A-Za-z0-9][A-Za-z0-9_.+=@-]*)*")
_ATTEMPT_PATTERN = re.compile(r"[^.]+\.a[0-9a-f]{16}(\..*)?")

T = TypeVar("T")

LONGEST_LINK = timedelta(days=7)
"""What S3 signs at most."""

NamedLocks = Callable[[str], AbstractContextManager[None]]
"""What makes a lock of a name, held inside its context by one writer of all there are."""


@dataclass(frozen=True)
class Condemned:
    """Something in quarantine: its folder there, what it was, when, why and by whom it was moved, and its size."""

    place: str
    what: str
    at: datetime
    why: str
    by: str
    size_bytes: int

    def to_json(self) -> dict[str, str | int]:
        """The same as JSON values."""
        return {**asdict(self), "at": self.at.isoformat()}


Known: TypeAlias = Iterable[tuple[str, bytes]]
"""Keys and manifests of one stage that somebody read or wrote before; they may be out of date."""


def nothing_known(stage: str, /) -> Known:
    """For a stage of whose artifacts nothing is known."""
    return ()


@dataclass(frozen=True)
class Look:
    """An artifact that is there: its manifest, or why it proves nothing or could not be read."""

    key: str
    manifest: Manifest | None
    fault: CorruptedArtifactError | InfrastructureError | None = None


class Patience(Protocol):
    """Calls work that needs a store and gives what it returns, sooner or later: see `magi2.runtime.store_wait`."""

    def __call__(self, work: Callable[[], T], /) -> T: ...


def at_once(work: Callable[[], T], /) -> T:
    """No patience: what `work` returns or raises."""
    return work()


class ArtifactStore(Protocol):
    """Finished artifacts by stage and key, and documents by name.

    An artifact exists when its manifest does and never changes. Every method may be called by many threads and
    processes at once. All raise InputError for a stage, key or name that is none, InfrastructureError (retryable)
    when disk or network fail, CorruptedArtifactError when what is stored is not what was published and a second look
    past all caches says so too; a corrupted artifact goes away by `condemn`, after which `publish` makes it anew.
    """

    @property
    def url(self) -> str:
        """What `open_store` takes to open this store in another process."""
        ...

    def find(self, stage: str, key: str) -> Manifest | None:
        """The artifact's manifest once payload presence and sizes are checked, or None. Reads no payload."""
        ...

    def look(self, stage: str, keys: Collection[str] | None = None, *, known: Known = ()) -> Iterator[Look]:
        """What `find` says of many artifacts, or of all of a stage: those that are there, with faults of single ones.

        A store that lists its files with their sizes and digests takes a `known` manifest for the stored one when the
        listing has these very bytes and the payloads' sizes, and does not read it again; those come first, the others
        in order of their keys.
        """
        ...

    def stage_folder(self, stage: str, key: str) -> AbstractContextManager[Path]:
        """A private empty folder to write payloads in, cheap to publish from; gone when the context ends."""
        ...

    def publish(self, draft: ManifestDraft, files: Mapping[str, Path]) -> Manifest:
        """Store `files` (payload name to regular file) as the artifact of `draft.recipe`.

        Payloads are made durable first, the manifest last and only if there is none. The one whose manifest is first
        wins; everybody gets the winner's manifest and the losers' payloads are taken away. On success the given files
        are gone from where they were; on an error they are still there and the call may be repeated. A name ending in
        `.safetensors` gets its tensor specs from the file's header.
        Raises: ContractError when a file is not there or not what its name says.
        """
        ...

    def fetch(self, stage: str, key: str, name: str) -> Path:
        """A local file with the payload, its digest verified now. Read it, never write it, and open it at once: it may
        go with the artifact, and a remote store keeps few local copies.

        Raises: CorruptedArtifactError when the artifact is absent or the payload damaged; ContractError when the
        artifact has no payload of this name.
        """
        ...

    def payload(self, stage: str, key: str, name: str) -> Payload:
        """What the manifest says of a payload, whose presence and size are checked; none of it is read.

        Raises: as `fetch` does.
        """
        ...

    def read(self, stage: str, key: str, payload: Payload, start: int, stop: int) -> bytes:
        """The bytes `start` to `stop` of a payload, the digest verified when they are all of it.

        Raises: CorruptedArtifactError when it is not there any more or damaged; InputError for bytes that it has not.
        """
        ...

    @property
    def link_origin(self) -> str | None:
        """Where a browser goes that follows what `link` gives: `file://` for a store in a folder, the origin
        https://host[:port] of a server's public endpoint, None for a server that no browser is known to reach.
        """
        ...

    def link(self, stage: str, key: str, name: str, *, expires: timedelta, save_as: str | None = None) -> str:
        """An address at which anyone can read the payload until `expires` from now: for browsers, nothing is fetched.

        That of a payload on this machine is a file:// address, which does not expire. The digest is not verified.
        A browser that follows one with `save_as` keeps the payload under that name instead of showing it.
        Raises: as `fetch` does, and InputError for a time that the server does not grant.
        """
        ...

    def keys(self, stage: str) -> Iterator[str]:
        """The keys of all artifacts of a stage, in order. Nothing is checked but that there is a manifest."""
        ...

    def remove(self, stage: str, key: str) -> bool:
        """Remove an artifact and say whether it was there. The manifest goes first: half removed is no artifact."""
        ...

    def remove_all(self, manifests: Sequence[Manifest]) -> None:
        """Remove artifacts whose manifests were read just now, all manifests first; those that are gone are no error.

        A server is asked once for a thousand files.
        """
        ...

    def condemn(self, stage: str, key: str, *, why: str) -> bool:
        """Move a damaged artifact to quarantine, with a note, and say whether there was one."""
        ...

    def condemn_document(self, name: str, *, why: str) -> bool:
        """Move a damaged document to quarantine, with a note, and say whether there was one."""
        ...

    def condemned(self) -> Iterator[Condemned]:
        """What is in quarantine, in order of its coming there."""
        ...

    def expire_condemned(self, *, older_than_days: float, dry_run: bool = False) -> list[str]:
        """Delete what was condemned so long ago, and say which places in quarantine that are."""
        ...

    def sweep(
        self, *, older_than_hours: float, dry_run: bool = False, known: Callable[[str], Known] = nothing_known
    ) -> list[str]:
        """Delete what dead attempts and interrupted removals left, and say which; foreign files are left alone.

        `known` gives manifests of a stage, which `look` would take.
        """
        ...

    def put_document(self, name: str, content: bytes) -> None:
        """Store or replace a document. Names are ids like `batches/<id>/report.json`, never a user's text."""
        ...

    def create_document(self, name: str, content: bytes) -> bytes:
        """Store a document unless there is one of this name; the content that stands, of whoever was first."""
        ...

    def get_document(self, name: str, *, fresh: bool = False) -> bytes | None:
        """A document's content, or None; `fresh` reads it past all caches, for a second look at what seems damaged."""
        ...

    def remove_document(self, name: str) -> None:
        """Remove a document if there is one."""
        ...

    def sweep_documents(self, folder: str, *, older_than_hours: float, dry_run: bool = False) -> list[str]:
        """Remove the documents of a folder of names that nobody has written for so long, and say which."""
        ...

    def list_documents(self, folder: str) -> Iterator[str]:
        """The names of the documents in a folder of names, such as `batches` or `batches/`, and below it.

        Those of one folder come together, in no promised order.
        """
        ...

    def is_empty(self) -> bool:
        """Whether there is neither a document nor anything of an artifact; also of a folder that is not there."""
        ...

    def self_test(self) -> str:
        """Try what these promises rest on and say so in one line.

        Raises: InfrastructureError or ConfigError naming what fails.
        """
        ...


def artifact_prefix(stage: str, key: str) -> PurePosixPath:
    """The artifact's folder, relative to the store. Raises InputError for a stage or key that is none."""
    if not is_digest(key):
        raise InputError(f"artifact key {key!r} is not a SHA-256 in lower-case hex")
    return PurePosixPath(ARTIFACTS) / check_stage(stage) / key[:2] / key


def is_document_name(name: str) -> bool:
    """Whether a document may have the name."""
    return isinstance(name, str) and _DOCUMENT_PATTERN.fullmatch(name) is not None and len(name) <= 512


def document_path(name: str) -> PurePosixPath:
    """Where a document lies, relative to the store. Raises InputError for a name that could leave its folder."""
    if not is_document_name(name):
        raise InputError(f"document name {name!r}: expected ids of letters, digits and _.+=@- joined by /")
    return PurePosixPath(DOCUMENTS) / name


def new_attempt() -> str:
    """A random token that no other attempt has."""
    return f"a{secrets.token_hex(8)}"


def attempt_file_name(name: str, attempt: str) -> str:
    """The stored name of a payload: `clip.mp4` of attempt `a0f` becomes `clip.a0f.mp4`."""
    stem, dot, suffix = check_payload_name(name).partition(".")
    return f"{stem}.{attempt}{dot}{suffix}"


def is_attempt_file(file_name: str) -> bool:
    """Whether a file name is one that `attempt_file_name` gives."""
    return _ATTEMPT_PATTERN.fullmatch(file_name) is not None


def describe_payload(path: Path, file_name: str) -> Payload:
    """The payload record of a local file: its size, digest and, for safetensors, its tensors' specs.

    Raises: ContractError when it is no regular file or not what its name says.
    """
    if path.is_symlink() or not path.is_file():
        raise ContractError(f"{path}: there is no regular file to publish")
    try:
        tensors = read_specs(path) if file_name.endswith(TENSORS_SUFFIX) else None
    except CorruptedArtifactError as error:
        raise ContractError(str(error)) from error
    return Payload(file=file_name, size_bytes=path.stat().st_size, sha256=sha256_file(path), tensors=tensors)


def payload_of(manifest: Manifest, name: str, place: str) -> Payload:
    """The payload `name` of an artifact; raises ContractError saying which names there are."""
    payload = manifest.payloads.get(name)
    if payload is None:
        raise ContractError(f"{place}: no payload {name!r}, the artifact has {sorted(manifest.payloads)}")
    return payload
