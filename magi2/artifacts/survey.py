"""What a server's listing says of many artifacts, held against their manifests: a thousand objects a request.

A manifest that is known from elsewhere is the stored one when the listing gives the MD5 of the very same bytes, and its
payloads are there when the listing has exactly these files in these sizes. Whatever differs is asked for as ever.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice

from magi2.artifacts.blobs import Blob
from magi2.artifacts.manifest import Manifest
from magi2.artifacts.recipe import is_digest
from magi2.artifacts.store import MANIFEST_NAME
from magi2.errors import CorruptedArtifactError

LISTED_AT_ONCE = 1000
"""Objects that a server lists with one request."""


class Survey:
    """The artifacts of one stage that a listing has: of each 64 bytes, whatever it holds.

    `blobs` are those of the artifacts' folders, the ones of each folder together.
    """

    def __init__(self, blobs: Iterable[Blob]) -> None:
        self._listed: dict[bytes, bytes] = {}
        self.unpublished: set[str] = set()
        """The keys of folders that have files and no manifest."""
        for folder, members in groupby(blobs, key=_folder):
            key = folder.rpartition("/")[2]
            if not is_digest(key):
                continue
            files = {blob.name.rpartition("/")[2]: blob for blob in members}
            manifest = files.pop(MANIFEST_NAME, None)
            if manifest is None:
                self.unpublished.add(key)
            else:
                sizes = _digest((name, blob.size_bytes) for name, blob in files.items())
                self._listed[bytes.fromhex(key)] = _md5(manifest) + sizes

    def __contains__(self, key: str) -> bool:
        return bytes.fromhex(key) in self._listed

    def __iter__(self) -> Iterator[str]:
        return (key.hex() for key in sorted(self._listed))

    def is_stored(self, key: str, manifest: bytes) -> bool:
        """Whether the artifact's stored manifest has these bytes."""
        return self._listed.get(bytes.fromhex(key), b"")[:16] == hashlib.md5(manifest, usedforsecurity=False).digest()

    def is_whole(self, manifest: Manifest) -> bool:
        """Whether exactly the payloads that a manifest names are listed beside it, in their sizes."""
        wanted = _digest((payload.file, payload.size_bytes) for payload in manifest.payloads.values())
        return self._listed.get(bytes.fromhex(manifest.key), b"")[16:] == wanted

    def accepted(self, key: str, manifest: bytes) -> Manifest | None:
        """A known manifest, if it is the stored one and its payloads are there."""
        if not self.is_stored(key, manifest):
            return None
        try:
            found = Manifest.from_bytes(manifest)
        except CorruptedArtifactError:
            return None
        return found if found.key == key and self.is_whole(found) else None

    def forget(self, key: str) -> None:
        """Hold no more of an artifact."""
        self._listed.pop(bytes.fromhex(key), None)


def files_of(folders: Sequence[str], listed: Callable[[str, str], Iterable[Blob]], within: str) -> Iterator[Blob]:
    """The blobs in some of the folders that lie `within` another, in order, all of one folder together.

    `folders` are in order. `listed(within, name)` gives the blobs there after a name: of each page that has a wanted
    folder one request is made, so never more than folders are wanted, nor than the whole listing takes.
    """
    wanted, waiting = set(folders), deque(folders)
    while waiting:
        # By its bare name a folder is passed over by some servers, with all that it holds.
        page = list(islice(listed(within, f"{waiting[0]}/"), LISTED_AT_ONCE))
        is_last = len(page) < LISTED_AT_ONCE
        cut = None if is_last else _folder(page[-1])  # the rest of this folder may be on the next page
        if cut == waiting[0]:
            page += [blob for blob in listed(cut, page[-1].name) if _folder(blob) == cut]
            waiting.popleft()
            cut = None
        yield from (blob for blob in page if (folder := _folder(blob)) in wanted and folder != cut)
        while waiting and (is_last or waiting[0] < _folder(page[-1])):
            waiting.popleft()


def _folder(blob: Blob) -> str:
    return blob.name.rpartition("/")[0]


def _md5(blob: Blob) -> bytes:
    return bytes.fromhex(blob.md5) if blob.md5 else bytes(16)


def _digest(files: Iterable[tuple[str, int | None]]) -> bytes:
    """What tells one set of names and sizes from another."""
    lines = "\n".join(f"{name} {size}" for name, size in sorted(files))
    return hashlib.blake2b(lines.encode(), digest_size=16).digest()
