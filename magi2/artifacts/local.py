"""Artifacts in a folder of a POSIX file system (a local disk, NFS, Lustre): hard links and fsync, no locks.

A manifest appears by `link`, which creates the name or fails, and only after everything it speaks of is on the disk.
A process may die between any two lines: then there is either no artifact or a complete one, and leftovers are found
by `sweep`.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from magi2.artifacts.disk import (
    disk_errors,
    last_change,
    make_folder,
    place_file,
    remove_if_empty,
    subfolders,
    sync_file,
    sync_folder,
    write_durably,
)
from magi2.artifacts.manifest import Manifest, ManifestDraft, Payload
from magi2.artifacts.recipe import check_stage, is_digest, sha256_file
from magi2.artifacts.store import (
    ARTIFACTS,
    MANIFEST_NAME,
    artifact_prefix,
    attempt_file_name,
    describe_payload,
    document_path,
    is_attempt_file,
    new_attempt,
    payload_of,
)
from magi2.errors import ContractError, CorruptedArtifactError, InfrastructureError

logger = logging.getLogger(__name__)

SCRATCH = "scratch"
_NO_LINKS = "put the store on a file system with hard links, such as ext4, xfs or NFS"


class LocalStore:
    """An `ArtifactStore` in `root`, which is made when first written to. `clock` gives seconds since 1970."""

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.root = root.absolute()
        self._clock = clock

    def __repr__(self) -> str:
        return f"LocalStore({str(self.root)!r})"

    @property
    def url(self) -> str:
        return self.root.as_uri()

    def find(self, stage: str, key: str) -> Manifest | None:
        folder = self._folder(stage, key)
        while (manifest := self._read_manifest(stage, key)) is not None:
            fault = _first_fault(folder, manifest)
            if fault is None:
                return manifest
            # A removal between the two looks is no damage: look again.
            if self._read_manifest(stage, key) == manifest:
                raise CorruptedArtifactError(fault)
        return None

    @contextmanager
    def stage_folder(self, stage: str, key: str) -> Iterator[Path]:
        artifact_prefix(stage, key)
        folder = self.root / SCRATCH / f"{stage}-{key[:12]}-{new_attempt()}"
        with disk_errors(folder):
            folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self, draft: ManifestDraft, files: Mapping[str, Path]) -> Manifest:
        stage, key, attempt = draft.recipe.stage, draft.recipe.key, new_attempt()
        folder = self._folder(stage, key)
        if not files:
            raise ContractError(f"{folder}: an artifact needs at least one payload")
        with disk_errors(folder):
            payloads = {name: _durable(path, attempt_file_name(name, attempt)) for name, path in files.items()}
            manifest = draft.complete(payloads, datetime.fromtimestamp(self._clock(), UTC))
            try:
                for name, payload in payloads.items():
                    place_file(files[name], folder / payload.file, root=self.root)
                sync_folder(folder)
                winner = self._create_manifest(folder, manifest, attempt)
            finally:
                self._withdraw_unpublished(stage, key, [payload.file for payload in payloads.values()])
            for path in files.values():
                path.unlink(missing_ok=True)
        return winner

    def fetch(self, stage: str, key: str, name: str) -> Path:
        folder = self._folder(stage, key)
        manifest = self.find(stage, key)
        if manifest is None:
            raise CorruptedArtifactError(f"{folder}: there is no such artifact")
        payload = payload_of(manifest, name, str(folder))
        path = folder / payload.file
        with disk_errors(path):
            try:
                found = sha256_file(path)
            except FileNotFoundError as error:
                raise CorruptedArtifactError(f"{path}: was removed while being read") from error
        if found != payload.sha256:
            raise CorruptedArtifactError(f"{path}: SHA-256 is {found}, the manifest says {payload.sha256}")
        return path

    def keys(self, stage: str) -> Iterator[str]:
        for folder in self._artifact_folders(check_stage(stage)):
            if (folder / MANIFEST_NAME).is_file():
                yield folder.name

    def remove(self, stage: str, key: str) -> bool:
        folder = self._folder(stage, key)
        try:
            manifest = self._read_manifest(stage, key)
        except CorruptedArtifactError as error:
            logger.warning("removing an artifact without reading its manifest, a sweep takes the rest: %s", error)
            manifest = None
        with disk_errors(folder):
            try:
                (folder / MANIFEST_NAME).unlink()
                sync_folder(folder)
            except FileNotFoundError:
                return False
            for payload in manifest.payloads.values() if manifest else ():
                (folder / payload.file).unlink(missing_ok=True)
            remove_if_empty(folder)
        return True

    def sweep(self, *, older_than_hours: float, dry_run: bool = False) -> list[str]:
        latest = self._clock() - older_than_hours * 3600
        with disk_errors(self.root):
            garbage = [path for path in self._garbage() if last_change(path) <= latest]
            for path in garbage if not dry_run else ():
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                    continue
                path.unlink(missing_ok=True)
                if path.parent != self.root / SCRATCH:
                    remove_if_empty(path.parent)
        return [str(path.relative_to(self.root)) for path in garbage]

    def put_document(self, name: str, content: bytes) -> None:
        target = self.root / document_path(name)
        temporary = self.root / SCRATCH / f"document-{new_attempt()}"
        with disk_errors(target):
            make_folder(target.parent, root=self.root)
            temporary.parent.mkdir(exist_ok=True)
            write_durably(temporary, content)
            temporary.replace(target)
            sync_folder(target.parent)

    def get_document(self, name: str) -> bytes | None:
        path = self.root / document_path(name)
        with disk_errors(path):
            try:
                return path.read_bytes()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    def self_test(self) -> str:
        with self.stage_folder("doctor", "0" * 64) as folder, disk_errors(self.root):
            first, second, name = folder / "first", folder / "second", folder / "name"
            write_durably(first, b"first")
            write_durably(second, b"second")
            try:
                os.link(first, name)
            except OSError as error:
                raise InfrastructureError(
                    f"{self.root}: no hard links here: {error.strerror}", hint=_NO_LINKS
                ) from error
            with suppress(FileExistsError):
                os.link(second, name)
                raise InfrastructureError(f"{self.root}: a link replaced a file; create-only writes do not work here")
            sync_folder(folder)
            second.replace(name)
            if name.read_bytes() != b"second" or first.read_bytes() != b"first":
                raise InfrastructureError(f"{self.root}: a file does not hold what was written")
            free_gib = shutil.disk_usage(self.root).free / 2**30
        return f"{self.root}: create-only links and renames work, {free_gib:.0f} GiB free"

    def _folder(self, stage: str, key: str) -> Path:
        return self.root / artifact_prefix(stage, key)

    def _read_manifest(self, stage: str, key: str) -> Manifest | None:
        path = self._folder(stage, key) / MANIFEST_NAME
        with disk_errors(path):
            try:
                data = path.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None
        manifest = Manifest.from_bytes(data, place=str(path))
        if (manifest.stage, manifest.key) != (stage, key):
            raise CorruptedArtifactError(f"{path}: is the manifest of {manifest.stage} {manifest.key}")
        return manifest

    def _create_manifest(self, folder: Path, manifest: Manifest, attempt: str) -> Manifest:
        """Make the artifact exist, unless it does already; the manifest that stands."""
        draft = folder / attempt_file_name(MANIFEST_NAME, attempt)
        try:
            write_durably(draft, manifest.to_bytes())
            while True:
                with suppress(FileExistsError):
                    os.link(draft, folder / MANIFEST_NAME)
                    sync_folder(folder)
                    return manifest
                winner = self.find(manifest.stage, manifest.key)
                if winner is not None:  # else it was removed since: try again
                    return winner
        finally:
            draft.unlink(missing_ok=True)

    def _withdraw_unpublished(self, stage: str, key: str, file_names: list[str]) -> None:
        """Delete this attempt's payloads unless the manifest that stands, whoever says it failed, names them."""
        folder = self._folder(stage, key)
        try:
            manifest = self._read_manifest(stage, key)
        except CorruptedArtifactError:
            manifest = None  # the damaged one is another attempt's
        published = {payload.file for payload in manifest.payloads.values()} if manifest else set()
        for file_name in set(file_names) - published:
            (folder / file_name).unlink(missing_ok=True)

    def _artifact_folders(self, stage: str) -> Iterator[Path]:
        for prefix in subfolders(self.root / ARTIFACTS / stage):
            for folder in subfolders(prefix):
                if is_digest(folder.name) and folder.name[:2] == prefix.name:
                    yield folder

    def _garbage(self) -> Iterator[Path]:
        if (scratch := self.root / SCRATCH).is_dir():
            yield from sorted(scratch.iterdir())
        for stage in subfolders(self.root / ARTIFACTS):
            for folder in self._artifact_folders(stage.name):
                try:
                    manifest = self._read_manifest(stage.name, folder.name)
                except CorruptedArtifactError as error:
                    logger.warning("left as it is: %s", error)
                    continue
                named = {payload.file for payload in manifest.payloads.values()} if manifest else set()
                with suppress(FileNotFoundError):
                    names = sorted(entry.name for entry in folder.iterdir() if is_attempt_file(entry.name))
                    yield from (folder / name for name in names if name not in named)


def _durable(path: Path, file_name: str) -> Payload:
    payload = describe_payload(path, file_name)
    sync_file(path)
    return payload


def _first_fault(folder: Path, manifest: Manifest) -> str | None:
    """What is wrong with the payloads as far as sizes tell."""
    for payload in manifest.payloads.values():
        path = folder / payload.file
        with disk_errors(path):
            try:
                state = path.lstat()
            except FileNotFoundError:
                return f"{path}: payload is missing"
        if not stat.S_ISREG(state.st_mode):
            return f"{path}: payload is not a regular file"
        if state.st_size != payload.size_bytes:
            return f"{path}: has {state.st_size} bytes, the manifest says {payload.size_bytes}"
    return None
