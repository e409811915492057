"""Objects that a batch names, read from a bucket: never written, and never more of one than was asked for.

Messages name the object. Where its server is and who asks it is the deployment's affair, so the SDK's words are left
out.
"""

from __future__ import annotations

import time

from minio.credentials import Provider
from minio.error import S3Error
from urllib3.response import BaseHTTPResponse

from magi2.artifacts.address import S3Place
from magi2.artifacts.s3 import LONGEST_ANSWER_S, SLOWEST_BYTES_PER_S, s3_client
from magi2.artifacts.s3_requests import check_request, foreign_type, s3_errors, says_absent
from magi2.errors import AwayError, ConfigError, InfrastructureError, SourceError
from magi2.inputs.refusals import AbsentError, UnreadableError
from magi2.inputs.text import shown

_REFUSED = {
    "AccessDenied": "access to it is denied, or there is no such object",  # a server says so where keys are secret
    "InvalidObjectState": "is archived",
}
_BLOCK = 2**20


class S3Input:
    """The objects of one bucket, by key."""

    def __init__(self, place: S3Place, credentials: Provider) -> None:
        self._bucket = place.bucket
        self._credentials = credentials
        self._client = s3_client(place.endpoint, credentials, place.region)

    def read(self, key: str, limit: int) -> bytes:
        """The content of an object of at most `limit` bytes.

        Raises: UnreadableError with the reason, without the address; AbsentError; AwayError and InfrastructureError for
        a server that is away or fails; SourceError for one that refuses the deployment as such.
        """
        place = shown(f"s3://{self._bucket}/{key}")
        try:
            check_request(place, self._credentials, self._bucket, key)
            with s3_errors(place):
                return self._read(place, key, limit)
        except AwayError:
            raise AwayError(f"{place}: the server of this bucket is away or busy, or too slow") from None
        except ConfigError:
            reason = "no such bucket, or the credentials for it are wrong or not set"
            raise SourceError(f"{place}: {reason}", hint="check its entry of MAGI2_INPUT_ROOTS") from None
        except InfrastructureError as error:
            code = error.__cause__.code if isinstance(error.__cause__, S3Error) else "an error"
            raise InfrastructureError(f"{place}: the server of this bucket answers {code}") from None

    def _read(self, place: str, key: str, limit: int) -> bytes:
        try:
            response: BaseHTTPResponse = self._client.get_object(self._bucket, key)
        except S3Error as error:
            if says_absent(error):
                raise AbsentError("no such object") from None
            if error.code in _REFUSED and foreign_type(error.response) is None:
                raise UnreadableError(_REFUSED[error.code]) from None
            raise
        try:
            return _content(place, response, limit)
        finally:
            response.close()
            response.release_conn()


def _content(place: str, response: BaseHTTPResponse, limit: int) -> bytes:
    """What comes, which is let go as soon as it is too much, too slow, or a web page in place of the object."""
    if foreign_type(response) is not None:
        raise AwayError(f"{place}: instead of it came a web page")
    announced = int(response.headers.get("content-length") or 0)
    if announced > limit:
        raise UnreadableError(f"has {announced} bytes, at most {limit}")
    content, began = bytearray(), time.monotonic()
    while block := response.read1(_BLOCK):
        content += block
        if len(content) > limit:
            raise UnreadableError(f"has more than {limit} bytes")
        if time.monotonic() - began > LONGEST_ANSWER_S + len(content) / SLOWEST_BYTES_PER_S:
            raise AwayError(f"{place}: comes too slowly")
    if len(content) < announced:
        raise AwayError(f"{place}: {announced} bytes were announced, {len(content)} came")
    return bytes(content)
