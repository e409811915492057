"""Opening a store by its address."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from magi2.artifacts.local import LocalStore
from magi2.artifacts.store import ArtifactStore
from magi2.errors import ConfigError


def open_store(url: str) -> ArtifactStore:
    """The store at `file:///folder` or at a plain path. Nothing is read or written yet.

    Raises: ConfigError when the address is of no known kind.
    """
    if not url.strip():
        raise ConfigError("the artifact store's address is empty", hint="give a folder or file:///folder")
    if "://" not in url:
        return LocalStore(Path(url).expanduser())
    parts = urlsplit(url)
    if parts.scheme == "s3":
        raise ConfigError(f"{url}: S3 stores are not supported yet", hint="give a folder or file:///folder")
    if parts.scheme != "file":
        raise ConfigError(f"{url}: no store of kind {parts.scheme!r}", hint="give a folder or file:///folder")
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ConfigError(f"{url}: not an address on this machine", hint="write file:///folder with three slashes")
    return LocalStore(Path(unquote(parts.path)))
