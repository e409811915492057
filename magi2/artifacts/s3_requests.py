"""Requests to an S3 server that the minio SDK knows but does not offer: the only place that calls its private methods.

They are those of minio 7.2. Everything here raises what the SDK raises.
"""

from __future__ import annotations

from dataclasses import dataclass

from minio import Minio
from minio.error import S3Error

_TAKEN = {"PreconditionFailed", "ConditionalRequestConflict"}
_ENDED = "NoSuchUpload"


@dataclass(frozen=True)
class BegunUpload:
    """A multipart upload that was neither completed nor aborted; `begun_at` in seconds since 1970."""

    name: str
    upload_id: str
    begun_at: float


def create_object(client: Minio, bucket: str, name: str, content: bytes) -> bool:
    """Store an object on the condition `If-None-Match: *`. False when the server says that there is one."""
    try:
        # put_object would send the header as user metadata.
        client._put_object(bucket, name, content, {"If-None-Match": "*"})
    except S3Error as error:
        if error.code in _TAKEN:
            return False
        raise
    return True


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
