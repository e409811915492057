"""What an S3 server's answers mean, and requests that the minio SDK knows but does not offer.

This is the only place that calls its private methods, which are those of minio 7.2; the requests raise what it raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import ParseError

from minio import Minio
from minio.credentials import Provider
from minio.deleteobjects import DeleteObject
from minio.error import MinioException, S3Error
from minio.helpers import check_bucket_name, check_object_name
from urllib3 import PoolManager
from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse

from magi2.errors import MAX_REASON, AwayError, ConfigError, InfrastructureError, cut

_MISCONFIGURED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "NoSuchBucket", "InvalidBucketName"}
_UNREADABLE = (ParseError, ValueError, LookupError, TypeError, AttributeError)
"""What the SDK raises over an answer that is no S3 server's."""
_BUSY = {"SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "OperationTimedOut", "ServerBusy"}
_BUSY_STATUSES = {408, 429, 500, 502, 503, 504}
_ABSENT = {"NoSuchKey", "NoSuchObject"}
_TAKEN = {"PreconditionFailed", "ConditionalRequestConflict"}
_ENDED = "NoSuchUpload"
_MD5 = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True)
class BegunUpload:
    """A multipart upload that was neither completed nor aborted; `begun_at` in seconds since 1970."""

    name: str
    upload_id: str
    begun_at: float


class PastCaches(PoolManager):
    """Connections whose requests no cache on the way may answer. The headers are not signed: a proxy may take them."""

    def urlopen(self, method: str, url: str, redirect: bool = True, **options: Any) -> BaseHTTPResponse:  # type: ignore[override]
        headers = {**(options.pop("headers", None) or {}), "Cache-Control": "no-cache", "Pragma": "no-cache"}
        return super().urlopen(method, url, redirect, headers=headers, **options)


@contextmanager
def s3_errors(place: str) -> Iterator[None]:
    """Turn the SDK's errors into ours, each one line that names `place`. The computer's own OSErrors pass.

    Raises: ConfigError for settings that can never work; AwayError for a server that is away or busy, and for an answer
    that is none of an S3 server's, such as a proxy's page; InfrastructureError for one that is full or says no.
    """
    try:
        yield
    except S3Error as error:
        message = _line(place, f"{error.code}: {error.message}")
        if error.code in _MISCONFIGURED and not _is_page(error):
            raise ConfigError(message, hint="check the bucket's name and the credentials' rights") from error
        is_away = _is_page(error) or error.response.status in _BUSY_STATUSES or error.code in _BUSY
        raise (AwayError if is_away else InfrastructureError)(message) from error
    except (MinioException, HTTPError) as error:
        raise AwayError(_line(place, str(error).partition(", Body:")[0])) from error
    except _UNREADABLE as error:
        what = f"an answer that is none of an S3 server's: {type(error).__name__}: {error}"
        raise AwayError(_line(place, what)) from error


def check_request(place: str, credentials: Provider, bucket: str, name: str) -> None:
    """Raises: ConfigError for absent credentials and names that no server takes, before any server is asked."""
    try:
        credentials.retrieve()
        check_bucket_name(bucket)
        check_object_name(name)
    except ValueError as error:
        raise ConfigError(_line(place, str(error)), hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") from error


def says_absent(error: S3Error) -> bool:
    """Whether an S3 server says that there is no such object."""
    return error.code in _ABSENT and not _is_page(error)


def foreign_type(response: BaseHTTPResponse) -> str | None:
    """The kind of an answer's content where that is a web page's, as a proxy gives; no store keeps any."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind if "html" in kind else None


def _is_page(error: S3Error) -> bool:
    """Whether the SDK took the bare status of a proxy's page, as HEAD gives it, for an S3 server's error."""
    return foreign_type(error.response) is not None


def _line(place: str, text: str) -> str:
    return f"{place}: {cut(' '.join(text.split()), MAX_REASON)}"


def create_object(client: Minio, bucket: str, name: str, content: bytes, content_type: str | None = None) -> bool:
    """Store an object on the condition `If-None-Match: *`. False when the server says that there is one."""
    kind = {"Content-Type": content_type} if content_type else {}
    try:
        # put_object would send the header as user metadata.
        client._put_object(bucket, name, content, {"If-None-Match": "*", **kind})
    except S3Error as error:
        if error.code in _TAKEN:
            return False
        raise
    return True


def delete_objects(client: Minio, bucket: str, names: Sequence[str]) -> None:
    """Delete objects, a thousand with each request; that one is not there is no error. Raises what the SDK does."""
    for fault in client.remove_objects(bucket, [DeleteObject(name) for name in names]):
        if fault.code not in _ABSENT:
            raise InfrastructureError(_line(f"s3://{bucket}/{fault.name}", f"{fault.code}: {fault.message}"))


def content_md5(etag: str | None) -> str | None:
    """The MD5 of an object's content in lower-case hex, where its ETag has the form of one.

    Parts, and servers that encrypt by keys of their own, give another one, which then equals no content's.
    """
    found = (etag or "").strip('"').lower()
    return found if _MD5.fullmatch(found) else None


def region_of(client: Minio, bucket: str) -> str:
    """The region for which the bucket's requests are signed; the server is asked once."""
    return str(client._get_region(bucket))


def begun_uploads(client: Minio, bucket: str, prefix: str) -> list[BegunUpload]:
    """The multipart uploads under way, or abandoned, of objects whose names begin with `prefix`.

    At most 1000 at a time: servers differ in how they lead on to more, and who aborts these finds the next.
    """
    found = client._list_multipart_uploads(bucket, prefix=prefix).uploads
    return [
        BegunUpload(upload.object_name, upload.upload_id, upload.initiated_time.timestamp())
        for upload in found
        if upload.upload_id and upload.initiated_time
    ]


def abort_upload(client: Minio, bucket: str, upload: BegunUpload) -> None:
    """Drop a multipart upload and its parts; nothing to do when it has ended since."""
    try:
        client._abort_multipart_upload(bucket, upload.name, upload.upload_id)
    except S3Error as error:
        if error.code != _ENDED:
            raise
