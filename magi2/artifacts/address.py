"""Opening a store by its address."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from magi2.artifacts.local import LocalStore
from magi2.artifacts.store import ArtifactStore, NamedLocks
from magi2.errors import ConfigError
from magi2.files import private_folder

if TYPE_CHECKING:
    from minio.credentials import Provider

AWS_ENDPOINT = "https://s3.amazonaws.com"
_HOST = r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]"
_ORIGIN = re.compile(rf"(?P<scheme>(?i:https?))://(?P<place>({_HOST})(:(?P<port>[0-9]{{1,5}}))?)/*")
_FOLDER_HINT = "give a folder, file:///folder or s3://bucket/prefix?endpoint=https://host"


def open_store(url: str, *, scratch: Path | None = None, lock: NamedLocks | None = None) -> ArtifactStore:
    """The store at a plain path, `file:///folder` or `s3://bucket/prefix?endpoint=http://host:port&region=name`.

    Of the store nothing is read or written yet. Without an endpoint it is AWS. `public_endpoint` is the server's
    address for browsers, to which links lead. Credentials are those of the environment
    (`AWS_ACCESS_KEY_ID`, `MINIO_ACCESS_KEY`, ...) or of `~/.aws/credentials`. `scratch` is where an S3 store works
    on the local disk, by default a folder of this user in the system's temporary folder. `lock` makes locks of names
    that exclude all other writers; an S3 store uses them when its server ignores conditions, and refuses to write
    artifacts there without.
    Raises: ConfigError when the address is of no known kind, or that folder is another user's.
    """
    if folder := store_folder(url):
        return LocalStore(folder)
    parts = urlsplit(url)
    if parts.scheme == "s3":
        # Not the run folder itself: a sweep of scratch would take locks, running jobs and logs for leftovers.
        return _open_s3(s3_place(url), scratch or _own_scratch(), lock)
    raise ConfigError(f"{url}: no store of kind {parts.scheme!r}", hint=_FOLDER_HINT)


def _own_scratch() -> Path:
    """A folder for S3 stores in the temporary one, which is everybody's. Raises ConfigError for another user's."""
    unsafe = "what passes through it is not safe"
    return private_folder(private_folder(Path(tempfile.gettempdir()) / f"magi2-{os.getuid()}", unsafe) / "s3", unsafe)


def store_folder(url: str) -> Path | None:
    """The folder of a store at a plain path or `file:///folder`; None for one that lies on a server.

    Raises: ConfigError when the address is empty or of a file elsewhere.
    """
    if not url.strip():
        raise ConfigError("the artifact store's address is empty", hint=_FOLDER_HINT)
    if "://" not in url:
        return Path(url).expanduser()
    parts = urlsplit(url)
    if parts.scheme != "file":
        return None
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ConfigError(f"{url}: not an address on this machine", hint="write file:///folder with three slashes")
    return Path(unquote(parts.path))


def canonical_address(url: str) -> str:
    """One spelling of an address for all that lead to the same store from this machine. Raises as `open_store` does."""
    store = open_store(url)
    return store.root.resolve().as_uri() if isinstance(store, LocalStore) else store.url


@dataclass(frozen=True)
class S3Place:
    """What an address `s3://bucket/prefix?endpoint=...` says; the prefix as it is written, credentials never."""

    bucket: str
    prefix: str
    endpoint: str
    region: str | None
    public_endpoint: str | None


def s3_place(url: str) -> S3Place:
    """The parts of an address on an S3 server. Raises ConfigError for one that is none, naming its bucket and path."""
    parts = urlsplit(url)
    place = f"s3://{parts.netloc.rpartition('@')[2]}{parts.path}"
    if "@" in parts.netloc:
        raise ConfigError(f"{place}: credentials do not belong in an address", hint="set AWS_ACCESS_KEY_ID")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(options.keys() - {"endpoint", "public_endpoint", "region"}):
        raise ConfigError(
            f"{place}: unknown option {unknown[0]!r}", hint="there are endpoint, public_endpoint and region"
        )
    public = options.get("public_endpoint")
    if not parts.netloc:
        raise ConfigError(f"{place}: the bucket's name is missing", hint=_FOLDER_HINT)
    return S3Place(
        bucket=parts.netloc,
        prefix=unquote(parts.path),
        endpoint=s3_origin(f"{place}: endpoint", options.get("endpoint", AWS_ENDPOINT)),
        region=options.get("region") or None,
        public_endpoint=s3_origin(f"{place}: public_endpoint", public) if public else None,
    )


def environment_credentials() -> Provider:
    """What the environment or `~/.aws/credentials` says; asked for when a request is made."""
    # Imported here: the SDK takes 0.2 s that commands on a local store need not pay.
    from minio.credentials import AWSConfigProvider, ChainedProvider, EnvAWSProvider, EnvMinioProvider

    return ChainedProvider([EnvAWSProvider(), EnvMinioProvider(), AWSConfigProvider()])


def _open_s3(place: S3Place, scratch: Path, lock: NamedLocks | None) -> ArtifactStore:
    from magi2.artifacts.s3 import S3Store

    return S3Store(
        place.bucket,
        endpoint=place.endpoint,
        public_endpoint=place.public_endpoint,
        prefix=place.prefix,
        region=place.region,
        credentials=environment_credentials(),
        scratch=scratch,
        lock=lock,
    )


def s3_origin(place: str, text: str) -> str:
    """The address of a server, which has a host, perhaps a port and nothing else. Raises: ConfigError."""
    found = _ORIGIN.fullmatch(text)
    if found is None or int(found["port"] or 80) not in range(1, 65536):
        raise ConfigError(f"{place} is not like https://host or http://host:port")
    return f"{found['scheme'].lower()}://{found['place']}"
