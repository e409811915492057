"""Artifacts in a bucket of an S3-compatible server, through the minio SDK.

What makes a manifest create-only is `If-None-Match: *`, which AWS, MinIO and SeaweedFS honour. A process tries that
before its first such write; on a server that ignores the condition, a lock must stand in for it. Parts of an upload
whose process was killed are no objects; `sweep` aborts such uploads.
"""

from __future__ import annotations

import atexit
import hashlib
import mimetypes
import os
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from datetime import timedelta
from functools import cache, cached_property
from io import BytesIO
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

import urllib3
from minio import Minio
from minio.commonconfig import ComposeSource
from minio.credentials import Provider
from minio.error import S3Error
from urllib3.response import BaseHTTPResponse

from magi2.artifacts.ahead import THREADS
from magi2.artifacts.base import BlobStore
from magi2.artifacts.blobs import Blob
from magi2.artifacts.damage import what_came
from magi2.artifacts.s3_requests import (
    PastCaches,
    abort_upload,
    begun_uploads,
    check_request,
    content_md5,
    create_object,
    delete_objects,
    foreign_type,
    region_of,
    s3_errors,
    says_absent,
)
from magi2.artifacts.store import ARTIFACTS, LONGEST_LINK, Known, NamedLocks, artifact_prefix, new_attempt
from magi2.artifacts.survey import Survey, files_of
from magi2.errors import AwayError, ConfigError, CorruptedArtifactError, InfrastructureError, InputError
from magi2.files import disk_errors, make_store_folder

PART_SIZE_BYTES = 16 * 2**20  # what a slow line sends within a read's limit
PROBE_NAME = "doctor/create-only"  # an empty object that tells whether the server honours conditions
LONGEST_WAIT_S = 30  # for a server that asks to be left alone for a while
KEPT_DOWNLOADS = 16  # fetched files on the local disk; a stage reads fewer for one clip
_TIMEOUT = urllib3.Timeout(connect=10, read=30)  # seconds
LONGEST_ANSWER_S = 120.0
SLOWEST_BYTES_PER_S = 100_000
"""An answer may take `LONGEST_ANSWER_S`, and longer by what its bytes take at this rate."""
_honours: dict[tuple[int, str], bool] = {}  # by process and store
# A server that takes a request and says nothing is asked twice; a pause that one asks for has a limit.
_RETRIES = urllib3.Retry(
    total=5,
    read=1,
    backoff_factor=0.2,
    status_forcelist=[429, 500, 502, 503, 504],
    retry_after_max=LONGEST_WAIT_S,
)


class S3Store(BlobStore):
    """An `ArtifactStore` in `bucket` below `prefix`, on the server at `endpoint` (http://host:port or https://host).

    `scratch` is a local folder for stage folders and downloads. The last `KEPT_DOWNLOADS` files that a process
    fetched are kept until it ends; an older one is deleted, so open at once what `fetch` gives. `lock` is used for
    servers that ignore conditions only, see `open_store`. `public_endpoint` is where browsers reach the server, which
    this process need not; links lead there, or to the endpoint itself.
    """

    def __init__(
        self,
        bucket: str,
        *,
        endpoint: str,
        credentials: Provider,
        scratch: Path,
        prefix: str = "",
        region: str | None = None,
        public_endpoint: str | None = None,
        lock: NamedLocks | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(scratch, clock)
        self._bucket, self._endpoint, self._region, self._lock = bucket, endpoint, region, lock
        self._public_endpoint = public_endpoint
        self._credentials = credentials
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._query: dict[str, list[str] | str | tuple[str]] = {}
        self._client = s3_client(endpoint, credentials, region)

    def __repr__(self) -> str:
        return f"S3Store({self.url!r})"

    @property
    def url(self) -> str:  # without the public endpoint, which is no part of what the store is
        place = {"endpoint": self._endpoint, **({"region": self._region} if self._region else {})}
        return f"s3://{self._bucket}/{self._prefix}?{urlencode(place)}"

    def self_test(self) -> str:
        name = f"doctor/{new_attempt()}"
        if not self._create(name, b"first"):
            raise InfrastructureError(f"{self._place(name)}: cannot be created, though it is not there")
        try:
            if self._create(name, b"second") or self._read(name) != b"first":
                raise InfrastructureError(f"{self._place(name)}: was replaced by a create-only write")
        finally:
            self._delete(name)
        how = "" if self._honours_conditions() else ", by a lock since this server ignores If-None-Match"
        return f"{self._place('')} at {self._endpoint}: create-only writes, reads and deletions work{how}"

    def _place(self, name: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{name}"

    def _uncached(self) -> Self:
        twin = copy(self)
        twin._client = s3_client(self._endpoint, self._credentials, self._region, PastCaches)
        # For a cache that does as it likes: nobody has asked by this address. Servers ignore what begins with x-.
        twin._query = {"x-look": new_attempt()}
        return twin

    def _read(self, name: str) -> bytes | None:
        with self._errors(name):
            response = self._get(name)
            if response is None:
                return None
            content = b"".join(self._body(name, response))
        if (kind := foreign_type(response)) is not None:
            raise CorruptedArtifactError(f"{self._place(name)}: instead of it came {what_came(content, kind)}")
        return content

    def _size(self, name: str) -> int | None:
        with self._errors(name):
            try:
                found = self._client.stat_object(self._bucket, self._prefix + name, extra_query_params=self._query)
                return int(found.size)
            except S3Error as error:
                if says_absent(error):
                    return None
                raise

    def _upload(self, path: Path, name: str, sha256: str) -> None:
        with disk_errors(path), self._errors(name):
            self._client.fput_object(
                self._bucket, self._prefix + name, str(path), content_type=media_type(name), part_size=PART_SIZE_BYTES
            )
        sent, stored = path.stat().st_size, self._size(name)
        if stored != sent:
            raise InfrastructureError(f"{self._place(name)}: {sent} bytes were sent, {stored} are stored")
        if (found := self._sha256(name)) != sha256:
            raise InfrastructureError(
                f"{self._place(name)}: SHA-256 of what is stored is {found}, of the file {sha256}"
            )

    def _sha256(self, name: str) -> str:
        """The digest of what the server gives back. An ETag is none: what it is of depends on the server."""
        digest = hashlib.sha256()
        with self._errors(name):
            for block in self._body(name, self._client.get_object(self._bucket, self._prefix + name)):
                digest.update(block)
        return digest.hexdigest()

    def _download(self, name: str) -> Path | None:
        path = _downloads(self._scratch, os.getpid()).new_path(Path(name).name)
        with disk_errors(path), self._errors(name):
            response = self._get(name)
            if response is None:
                return None
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # a sweep takes an old one
            with path.open("wb") as file:
                for block in self._body(name, response):
                    file.write(block)
        return path

    def _read_part(self, name: str, start: int, stop: int) -> bytes | None:
        with self._errors(name):
            response = self._get(name, offset=start, length=stop - start)
            if response is None:
                return None
            part = bytearray()
            for block in self._body(name, response):
                part += block
                if len(part) > stop - start:  # an object without an end, for all that is known
                    raise InfrastructureError(f"{self._place(name)}: this server ignores that a range is asked for")
            return bytes(part)

    def _get(self, name: str, **part: int) -> BaseHTTPResponse | None:
        """The server's answer, whose content is yet to be read, or None when there is no such object."""
        try:
            place = (self._bucket, self._prefix + name)
            response: BaseHTTPResponse = self._client.get_object(*place, extra_query_params=self._query, **part)
            return response
        except S3Error as error:
            if says_absent(error):
                return None
            raise

    def _body(self, name: str, response: BaseHTTPResponse) -> Iterator[bytes]:
        """An answer's content as it comes. Raises AwayError when it comes too slowly to be waited for."""
        received, began = 0, time.monotonic()
        try:
            while block := response.read1(2**20):
                received += len(block)
                seconds = time.monotonic() - began
                if seconds > LONGEST_ANSWER_S + received / SLOWEST_BYTES_PER_S:
                    raise AwayError(f"{self._place(name)}: {received} bytes came in {seconds:.0f} s")
                yield block
        finally:
            response.close()
            response.release_conn()

    @property
    def link_origin(self) -> str | None:
        return self._public_endpoint

    @cached_property
    def _signer(self) -> Minio:
        """What signs links. It asks the public endpoint nothing, to which this machine may have no way."""
        if self._public_endpoint is None:
            return self._client
        scheme, _, host = self._public_endpoint.partition("://")
        region = self._region or region_of(self._client, self._bucket)
        return Minio(host, credentials=self._credentials, secure=scheme == "https", region=region)

    def _link(self, name: str, expires: timedelta, save_as: str | None) -> str:
        if not timedelta(seconds=1) <= expires <= LONGEST_LINK:
            raise InputError(f"a link for {expires}: the server grants one second to {LONGEST_LINK.days} days")
        saved = {"response-content-disposition": f'attachment; filename="{save_as}"'} if save_as else None
        with self._errors(name):
            address = self._signer.presigned_get_object(
                self._bucket, self._prefix + name, expires=expires, response_headers=saved
            )
            return str(address)

    def _create(self, name: str, content: bytes) -> bool:
        if self._honours_conditions():
            return self._create_by_condition(name, content)
        if self._lock is None:
            raise ConfigError(
                f"{self._place(name)} at {self._endpoint}: this server ignores If-None-Match, and there is no lock",
                hint="use a server with conditional writes, such as MinIO, SeaweedFS or AWS, or set MAGI2_CATALOG",
            )
        with self._lock(f"{self._endpoint} {self._place(name)}"):
            if self._size(name) is not None:
                return False
            self._replace(name, content)
        return True

    def _create_by_condition(self, name: str, content: bytes) -> bool:
        with self._errors(name):
            return create_object(self._client, self._bucket, self._prefix + name, content)

    def _honours_conditions(self) -> bool:
        """Whether the server refuses to create what is there already; asked once by each process."""
        place = (os.getpid(), self.url)
        if place not in _honours:
            # A refusal is proof, and the object stays: only the first process of all has to ask twice.
            _honours[place] = not all(self._create_by_condition(PROBE_NAME, b"") for _ in range(2))
        return _honours[place]

    def _replace(self, name: str, content: bytes) -> None:
        with self._errors(name):
            self._client.put_object(
                self._bucket, self._prefix + name, BytesIO(content), len(content), content_type=media_type(name)
            )

    def _copy(self, name: str, target: str) -> bool:
        with self._errors(name):
            try:
                # By parts where it is longer than a server copies at once.
                source = ComposeSource(self._bucket, self._prefix + name)
                self._client.compose_object(self._bucket, self._prefix + target, [source])
            except S3Error as error:
                if says_absent(error):
                    return False
                raise
        return True

    def _delete(self, name: str) -> None:
        with self._errors(name):
            self._client.remove_object(self._bucket, self._prefix + name)

    def _delete_all(self, names: Iterable[str]) -> None:
        with self._errors(ARTIFACTS):
            delete_objects(self._client, self._bucket, [self._prefix + name for name in names])

    def _list(self, prefix: str, after: str | None = None) -> Iterator[Blob]:
        """`after` is a name of the store after which the list begins."""
        with self._errors(prefix):
            place = {"prefix": f"{self._prefix}{prefix}/", "start_after": after and self._prefix + after}
            for item in self._client.list_objects(self._bucket, recursive=True, **place):
                name, changed_at = item.object_name.removeprefix(self._prefix), item.last_modified.timestamp()
                yield Blob(name, changed_at, item.size, content_md5(item.etag))

    def _survey(self, stage: str, keys: Collection[str] | None) -> Survey:
        folder = f"{ARTIFACTS}/{stage}"
        if keys is None:
            return Survey(self._list(folder))
        return Survey(files_of(sorted(str(artifact_prefix(stage, key)) for key in set(keys)), self._list, folder))

    def _suspects(self, known: Callable[[str], Known]) -> Iterator[Blob]:
        for stage in self._stages():
            survey = self._survey(stage, None)
            for key, text in known(stage):
                if survey.accepted(key, text):
                    survey.forget(key)
            folder, rest = f"{ARTIFACTS}/{stage}", {*survey, *survey.unpublished}
            yield from files_of(sorted(str(artifact_prefix(stage, key)) for key in rest), self._list, folder)

    def _stages(self) -> list[str]:
        """The stages of which there is anything."""
        with self._errors(ARTIFACTS):
            items = self._client.list_objects(self._bucket, f"{self._prefix}{ARTIFACTS}/")
            return [item.object_name.rstrip("/").rpartition("/")[2] for item in items if item.is_dir]

    def _abort_uploads(self, latest: float, *, dry_run: bool) -> list[str]:
        with self._errors(ARTIFACTS):
            begun = begun_uploads(self._client, self._bucket, f"{self._prefix}{ARTIFACTS}/")
            old = [upload for upload in begun if upload.begun_at <= latest]
            for upload in old if not dry_run else []:
                abort_upload(self._client, self._bucket, upload)
        return [upload.name.removeprefix(self._prefix) for upload in old]

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        """Turn the SDK's errors into ours: settings that can never work, or trouble that may pass."""
        place = f"{self._place(name)} at {self._endpoint}"
        check_request(place, self._credentials, self._bucket, self._prefix + name)
        with s3_errors(place):
            yield


def s3_client(
    endpoint: str, credentials: Provider, region: str | None, pool: type[urllib3.PoolManager] = urllib3.PoolManager
) -> Minio:
    """A client of the server at http://host:port or https://host, which waits and tries again within limits."""
    scheme, _, host = endpoint.partition("://")
    http = pool(timeout=_TIMEOUT, retries=_RETRIES, maxsize=THREADS)
    return Minio(host, credentials=credentials, secure=scheme == "https", region=region, http_client=http)


def media_type(name: str) -> str:
    """What a browser is told that an object is."""
    return mimetypes.guess_type(name, strict=False)[0] or "application/octet-stream"  # WebP is none of the strict ones


class _Downloads:
    """Local copies of fetched payloads: the last few of this process, gone with it."""

    def __init__(self, scratch: Path) -> None:
        with disk_errors(scratch):
            make_store_folder(scratch, root=scratch)
            self._folder = Path(tempfile.mkdtemp(prefix="downloads-", dir=scratch))
        self._owner = os.getpid()
        self._kept: deque[Path] = deque()
        self._lock = threading.Lock()
        atexit.register(self._remove)

    def new_path(self, file_name: str) -> Path:
        """A path that nobody else writes to; the oldest copy beyond the limit is deleted."""
        path = self._folder / f"{new_attempt()}-{file_name}"
        with self._lock, disk_errors(path):
            while len(self._kept) >= KEPT_DOWNLOADS:
                self._kept.popleft().unlink(missing_ok=True)
            self._kept.append(path)
        return path

    def _remove(self) -> None:
        if os.getpid() == self._owner:  # not in a forked child
            shutil.rmtree(self._folder, ignore_errors=True)


@cache
def _downloads(scratch: Path, process_id: int) -> _Downloads:
    """The downloads of this process; a forked child has its own."""
    return _Downloads(scratch)
