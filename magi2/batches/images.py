"""Reference images in the store: images/<sha256>, so that no host and no rerun needs the original file."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from magi2.artifacts.damage import look_twice
from magi2.artifacts.store import ArtifactStore
from magi2.errors import CorruptedArtifactError

_FOLDER = "images"


def image_name(digest: str) -> str:
    """The document that holds an image."""
    return f"{_FOLDER}/{digest}"


def image_digests(store: ArtifactStore) -> Iterator[str]:
    """The digests by which the stored images are named."""
    return (name.removeprefix(f"{_FOLDER}/") for name in store.list_documents(_FOLDER))


def read_image(store: ArtifactStore, digest: str) -> bytes:
    """An image. Raises CorruptedArtifactError when it is not in the store, or is not the one of this digest."""
    return look_twice(lambda fresh: _read(store, digest, fresh=fresh))


def _read(store: ArtifactStore, digest: str, *, fresh: bool) -> bytes:
    content = store.get_document(image_name(digest), fresh=fresh)
    if content is None:
        raise CorruptedArtifactError(f"image {digest[:12]} is not in the store")
    if sha256(content).hexdigest() != digest:
        raise CorruptedArtifactError(f"image {digest[:12]} is damaged in the store")
    return content
