"""What all stores share: the order of steps that makes an artifact exist, or not, but never by half.

A store of one kind only says how to read, create and delete a blob (a file, an object) by its name. Nothing here
needs a lock, a rename or a listing that is up to date, so that disks and object stores behave alike.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Self, TypeVar

from magi2.artifacts.ahead import in_order
from magi2.artifacts.blobs import Blob
from magi2.artifacts.damage import look_twice
from magi2.artifacts.disk import last_change, remove_tree
from magi2.artifacts.look import by_survey, each
from magi2.artifacts.manifest import Manifest, ManifestDraft, Payload, check_payload_name
from magi2.artifacts.quarantine import Quarantine
from magi2.artifacts.recipe import check_stage, sha256_file
from magi2.artifacts.store import (
    ARTIFACTS,
    DOCUMENTS,
    MANIFEST_NAME,
    Known,
    Look,
    artifact_prefix,
    attempt_file_name,
    describe_payload,
    document_path,
    is_attempt_file,
    is_document_name,
    new_attempt,
    nothing_known,
    payload_of,
)
from magi2.artifacts.survey import Survey
from magi2.artifacts.tensors import SUFFIX as TENSORS_SUFFIX
from magi2.artifacts.tensors import TensorSpec, read_specs
from magi2.errors import ContractError, CorruptedArtifactError, InfrastructureError, InputError
from magi2.files import disk_errors, make_store_folder

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MEMBER_PATTERN = re.compile(rf"{ARTIFACTS}/([a-z][a-z0-9_]*)/([0-9a-f]{{2}})/(\2[0-9a-f]{{62}})/([^/]+)")


class BlobStore(Quarantine):
    """An `ArtifactStore` over named blobs."""

    # -- the promises of ArtifactStore ---------------------------------------------------------------------------

    def find(self, stage: str, key: str) -> Manifest | None:
        return self._twice(lambda store: store._checked(stage, key, lambda manifest: manifest.payloads.values()))

    def look(self, stage: str, keys: Collection[str] | None = None, *, known: Known = ()) -> Iterator[Look]:
        for key in keys or ():
            artifact_prefix(stage, key)
        survey = self._survey(check_stage(stage), keys)
        if survey is None:
            return each(self.keys(stage) if keys is None else sorted(set(keys)), lambda key: self.find(stage, key))
        read, find = (lambda key: self._manifest(stage, key)), (lambda key: self.find(stage, key))
        return by_survey(survey, known, read=read, find=find)

    @contextmanager
    def stage_folder(self, stage: str, key: str) -> Iterator[Path]:
        artifact_prefix(stage, key)
        folder = self._scratch / f"{stage}-{key[:12]}-{new_attempt()}"
        with disk_errors(folder):
            make_store_folder(folder, root=self._scratch_root)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self, draft: ManifestDraft, files: Mapping[str, Path]) -> Manifest:
        prefix, attempt = artifact_prefix(draft.recipe.stage, draft.recipe.key), new_attempt()
        if not files:
            raise ContractError(f"{self._place(str(prefix))}: an artifact needs at least one payload")
        with disk_errors(self._scratch):
            payloads = {name: describe_payload(path, attempt_file_name(name, attempt)) for name, path in files.items()}
        manifest = draft.complete(payloads, datetime.fromtimestamp(self._clock(), UTC))
        try:
            for name, payload in payloads.items():
                self._upload(files[name], f"{prefix}/{payload.file}", payload.sha256)
            winner = self._create_manifest(manifest)
        except BaseException:
            self._withdraw_unless_published(manifest)
            raise
        self._withdraw(manifest, winner)
        with disk_errors(self._scratch):
            for path in files.values():
                path.unlink(missing_ok=True)
        return winner

    def fetch(self, stage: str, key: str, name: str) -> Path:
        return self._twice(lambda store: store._fetch(stage, key, name))

    def payload(self, stage: str, key: str, name: str) -> Payload:
        return self._twice(lambda store: store._published(stage, key, name))[1]

    def read(self, stage: str, key: str, payload: Payload, start: int, stop: int) -> bytes:
        return self._twice(lambda store: store._read_range(stage, key, payload, start, stop))

    def link(self, stage: str, key: str, name: str, *, expires: timedelta, save_as: str | None = None) -> str:
        blob, _ = self._twice(lambda store: store._published(stage, key, name))
        return self._link(blob, expires, None if save_as is None else check_payload_name(save_as))

    def keys(self, stage: str) -> Iterator[str]:
        for blob in self._list(f"{ARTIFACTS}/{check_stage(stage)}"):
            member = _MEMBER_PATTERN.fullmatch(blob.name)
            if member is not None and member[4] == MANIFEST_NAME:
                yield member[3]

    def remove(self, stage: str, key: str) -> bool:
        prefix = artifact_prefix(stage, key)
        payloads = []
        try:
            manifest = self._manifest(stage, key)
            if manifest is None:
                return False
            payloads = [payload.file for payload in manifest.payloads.values()]
        except CorruptedArtifactError as error:
            logger.warning("removing an artifact without reading its manifest, a sweep takes the rest: %s", error)
        for file_name in (MANIFEST_NAME, *payloads):
            self._delete(f"{prefix}/{file_name}")
        return True

    def remove_all(self, manifests: Sequence[Manifest]) -> None:
        folders = [(artifact_prefix(manifest.stage, manifest.key), manifest) for manifest in manifests]
        self._delete_all([f"{folder}/{MANIFEST_NAME}" for folder, _ in folders])
        self._delete_all([f"{folder}/{payload.file}" for folder, each in folders for payload in each.payloads.values()])

    def sweep(
        self,
        *,
        older_than_hours: float,
        dry_run: bool = False,
        known: Callable[[str], Known] = nothing_known,
    ) -> list[str]:
        latest = self._clock() - older_than_hours * 3600
        # Both lists before the first deletion, which changes the times of files that share their content by a link.
        blobs = [blob.name for blob in self._orphans(known) if blob.changed_at <= latest]
        with disk_errors(self._scratch):
            entries = sorted(self._scratch.iterdir()) if self._scratch.is_dir() else []
            old = [path for path in entries if last_change(path) <= latest]
        if not dry_run:
            for name in blobs:
                if self._is_orphan(name):
                    self._delete(name)
            with disk_errors(self._scratch):
                for path in old:
                    remove_tree(path)
        return [*blobs, *self._abort_uploads(latest, dry_run=dry_run), *(f"scratch/{path.name}" for path in old)]

    def put_document(self, name: str, content: bytes) -> None:
        self._replace(str(document_path(name)), content)

    def create_document(self, name: str, content: bytes) -> bytes:
        blob = str(document_path(name))
        while not self._create(blob, content):
            standing = self._twice(lambda store: store._read(blob))
            if standing is not None:  # else it was removed since: try again
                return standing
        return content

    def get_document(self, name: str, *, fresh: bool = False) -> bytes | None:
        blob = str(document_path(name))
        return self._uncached()._read(blob) if fresh else self._twice(lambda store: store._read(blob))

    def remove_document(self, name: str) -> None:
        self._delete(str(document_path(name)))

    def sweep_documents(self, folder: str, *, older_than_hours: float, dry_run: bool = False) -> list[str]:
        latest = self._clock() - older_than_hours * 3600
        blobs = list(self._list(str(document_path(folder.removesuffix("/")))))
        old = [blob.name for blob in blobs if blob.changed_at <= latest]
        for name in old if not dry_run else []:
            self._delete(name)
        return [name.removeprefix(f"{DOCUMENTS}/") for name in old]

    def list_documents(self, folder: str) -> Iterator[str]:
        for blob in self._list(str(document_path(folder.removesuffix("/")))):
            name = blob.name.removeprefix(f"{DOCUMENTS}/")
            if is_document_name(name):
                yield name
            else:  # an editor's, or what NFS keeps of an open file that was removed
                logger.warning("left as it is, no document has such a name: %s", self._place(blob.name))

    def is_empty(self) -> bool:
        return not any(True for folder in (DOCUMENTS, ARTIFACTS) for _ in self._list(folder))

    # -- steps ---------------------------------------------------------------------------------------------------

    def _twice(self, look: Callable[[Self], T]) -> T:
        """What a look at the store finds; damage is believed when a second one, past all caches, finds it too."""
        return look_twice(lambda fresh: look(self._uncached() if fresh else self))

    def _fetch(self, stage: str, key: str, name: str) -> Path:
        blob, payload = self._published(stage, key, name)
        place = self._place(blob)
        path = self._download(blob)
        if path is None:
            raise CorruptedArtifactError(f"{place}: was removed while being read")
        with disk_errors(path):
            found = sha256_file(path)
        if found != payload.sha256:
            raise CorruptedArtifactError(f"{place}: {_other_digest(found, payload)}")
        if name.endswith(TENSORS_SUFFIX) and (specs := read_specs(path)) != payload.tensors:
            message = f"{place}: holds {_listed(specs)}, the manifest says {_listed(payload.tensors)}"
            raise CorruptedArtifactError(message)
        return path

    def _read_range(self, stage: str, key: str, payload: Payload, start: int, stop: int) -> bytes:
        blob = f"{artifact_prefix(stage, key)}/{payload.file}"
        if not 0 <= start <= stop <= payload.size_bytes:
            raise InputError(f"{self._place(blob)}: bytes {start} to {stop} of {payload.size_bytes}")
        part = self._read_part(blob, start, stop) if start < stop else b""
        if part is None:
            raise CorruptedArtifactError(f"{self._place(blob)}: was removed while being read")
        if len(part) != stop - start:
            raise CorruptedArtifactError(f"{self._place(blob)}: bytes {start} to {stop} are {len(part)} bytes")
        if len(part) == payload.size_bytes and (found := hashlib.sha256(part).hexdigest()) != payload.sha256:
            raise CorruptedArtifactError(f"{self._place(blob)}: {_other_digest(found, payload)}")
        return part

    def _manifest(self, stage: str, key: str) -> Manifest | None:
        name = f"{artifact_prefix(stage, key)}/{MANIFEST_NAME}"
        data = self._read(name)
        if data is None:
            return None
        manifest = Manifest.from_bytes(data, place=self._place(name))
        if (manifest.stage, manifest.key) != (stage, key):
            raise CorruptedArtifactError(f"{self._place(name)}: is the manifest of {manifest.stage} {manifest.key}")
        return manifest

    def _checked(self, stage: str, key: str, wanted: Callable[[Manifest], Iterable[Payload]]) -> Manifest | None:
        """The artifact's manifest, or None; presence and size of the wanted payloads are checked."""
        while (manifest := self._manifest(stage, key)) is not None:
            fault = self._fault(manifest, wanted(manifest))
            if fault is None:
                return manifest
            # A removal between the two looks is no damage: look again.
            if self._manifest(stage, key) == manifest:
                raise CorruptedArtifactError(fault)
        return None

    def _published(self, stage: str, key: str, name: str) -> tuple[str, Payload]:
        """The blob of an artifact's payload and what the manifest says of it; its presence and size are checked, those
        of no other: each would be a request more to a server.
        """
        prefix = artifact_prefix(stage, key)
        place = self._place(str(prefix))
        manifest = self._checked(stage, key, lambda manifest: [payload_of(manifest, name, place)])
        if manifest is None:
            raise CorruptedArtifactError(f"{place}: there is no such artifact")
        payload = manifest.payloads[name]
        return f"{prefix}/{payload.file}", payload

    def _fault(self, manifest: Manifest, payloads: Iterable[Payload]) -> str | None:
        """What is wrong with the payloads as far as sizes tell."""
        prefix = artifact_prefix(manifest.stage, manifest.key)
        for payload in payloads:
            name = f"{prefix}/{payload.file}"
            size_bytes = self._size(name)
            if size_bytes is None:
                return f"{self._place(name)}: payload is missing"
            if size_bytes != payload.size_bytes:
                return f"{self._place(name)}: has {size_bytes} bytes, the manifest says {payload.size_bytes}"
        return None

    def _create_manifest(self, manifest: Manifest) -> Manifest:
        """Make the artifact exist unless it does already; the manifest that stands."""
        name, content = f"{artifact_prefix(manifest.stage, manifest.key)}/{MANIFEST_NAME}", manifest.to_bytes()
        while not self._create(name, content):
            winner = self.find(manifest.stage, manifest.key)
            if winner is not None:  # else it was removed since: try again
                return winner
        return manifest

    def _withdraw_unless_published(self, manifest: Manifest) -> None:
        """Delete this attempt's payloads unless the manifest that stands names them, whatever the attempt was told.

        Under a manifest that says nothing they stay, for a sweep.
        """
        try:
            standing = self._twice(lambda store: store._manifest(manifest.stage, manifest.key))
        except CorruptedArtifactError as error:
            logger.warning("payloads of a failed attempt are left for a sweep: %s", error)
            return
        self._withdraw(manifest, standing)

    def _withdraw(self, manifest: Manifest, standing: Manifest | None) -> None:
        """Delete an attempt's payloads that the manifest which stands does not name."""
        published = {payload.file for payload in standing.payloads.values()} if standing else set()
        prefix = artifact_prefix(manifest.stage, manifest.key)
        for payload in manifest.payloads.values():
            if payload.file not in published:
                self._delete(f"{prefix}/{payload.file}")

    def _orphans(self, known: Callable[[str], Known]) -> Iterator[Blob]:
        """Files of attempts that no manifest names. A folder with an unreadable manifest is left for people."""
        members = ((blob, _MEMBER_PATTERN.fullmatch(blob.name)) for blob in self._suspects(known))
        attempts = ((blob, member) for blob, member in members if member is not None and is_attempt_file(member[4]))
        folders = groupby(attempts, key=lambda item: (item[1][1], item[1][3]))
        for blobs in in_order(self._unnamed, ((*place, [blob for blob, _ in group]) for place, group in folders)):
            yield from blobs

    def _unnamed(self, folder: tuple[str, str, list[Blob]]) -> list[Blob]:
        stage, key, blobs = folder
        try:
            manifest = self._manifest(stage, key)
        except (CorruptedArtifactError, InfrastructureError) as error:
            logger.warning("left as it is: %s", error)
            return []
        named = {payload.file for payload in manifest.payloads.values()} if manifest else set()
        return [blob for blob in blobs if blob.name.rpartition("/")[2] not in named]

    def _suspects(self, known: Callable[[str], Known]) -> Iterator[Blob]:
        """All blobs of artifacts, less those of some that are known to be nothing but whole."""
        return self._list(ARTIFACTS)

    def _survey(self, stage: str, keys: Collection[str] | None) -> Survey | None:
        """What a listing says of these artifacts or all of a stage; None where asking for each file is as quick."""
        return None

    def _is_orphan(self, name: str) -> bool:
        """Whether, at a second look, no manifest names the file of an attempt."""
        _, stage, _, key, file_name = name.split("/")
        try:
            manifest = self._uncached()._manifest(stage, key)
        except CorruptedArtifactError as error:
            logger.warning("left as it is: %s", error)
            return False
        return manifest is None or file_name not in {payload.file for payload in manifest.payloads.values()}


def _other_digest(found: str, payload: Payload) -> str:
    return f"SHA-256 is {found}, the manifest says {payload.sha256}"


def _listed(specs: Mapping[str, TensorSpec] | None) -> str:
    return ", ".join(f"{name} {spec}" for name, spec in sorted((specs or {}).items())) or "no tensors"
