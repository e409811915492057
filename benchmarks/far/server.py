"""An S3 server in memory that counts what it is asked and takes its time, for stores larger than a disk likes."""

from __future__ import annotations

import hashlib
import re
import threading
import time
import zlib
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "clips"
_PAGE = 1000
_KEY = re.compile(r"<Key>([^<]*)</Key>")


@dataclass(frozen=True)
class _Object:
    packed: bytes
    size_bytes: int
    md5: str
    changed_at: float


class FarS3:
    """One bucket. `asked` counts requests by kind: GET, HEAD, PUT, DELETE, LIST and DELETE MANY."""

    def __init__(self, latency_s: float = 0.0) -> None:
        self.latency_s = latency_s
        self.asked: Counter[str] = Counter()
        self.endpoint = ""
        self._objects: dict[str, _Object] = {}
        self._names: list[str] = []
        self._lock = threading.Lock()

    def put(self, name: str, content: bytes) -> None:
        """Store an object, uncounted."""
        packed = zlib.compress(content, 1)
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        with self._lock:
            if name not in self._objects:
                if not self._names or name > self._names[-1]:
                    self._names.append(name)
                else:
                    insort(self._names, name)
            self._objects[name] = _Object(packed, len(content), md5, time.time())

    def get(self, name: str) -> bytes | None:
        """An object's content, uncounted."""
        found = self._objects.get(name)
        return None if found is None else zlib.decompress(found.packed)

    def delete(self, name: str) -> None:
        """Delete an object if there is one, uncounted."""
        with self._lock:
            if self._objects.pop(name, None) is not None:
                del self._names[bisect_right(self._names, name) - 1]

    def names(self, prefix: str = "", after: str = "") -> Iterator[str]:
        """The names that begin with a prefix and come after another one, in order."""
        first = bisect_right(self._names, after) if after >= prefix else bisect_left(self._names, prefix)
        for index in range(first, len(self._names)):
            if not self._names[index].startswith(prefix):
                return
            yield self._names[index]

    def of(self, name: str) -> _Object | None:
        """What is stored under a name."""
        return self._objects.get(name)

    @contextmanager
    def running(self) -> Iterator[FarS3]:
        """The server on a port of this machine, known by `endpoint`."""
        handler = type("Handler", (_Handler,), {"far": self})
        http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        http.daemon_threads = True
        threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{http.server_port}"
        try:
            yield self
        finally:
            http.shutdown()
            http.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    far: FarS3

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", headers.get("Length", str(len(body))))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        name = unquote(parts.path).removeprefix(f"/{BUCKET}").removeprefix("/")
        query = {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        kind = {"GET": "GET" if name else "LIST", "POST": "DELETE MANY"}.get(self.command, self.command)
        self.far.asked[kind] += 1
        if self.far.latency_s:
            time.sleep(self.far.latency_s)
        getattr(self, f"_{kind.lower().replace(' ', '_')}")(name, query, body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815

    def _get(self, name: str, query: dict[str, str], body: bytes) -> None:
        found, content = self.far.of(name), self.far.get(name)
        if found is None or content is None:
            self._absent()
            return
        status, asked = 200, re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked:
            status, content = 206, content[int(asked[1]) : int(asked[2]) + 1 if asked[2] else None]
        self._answer(status, content, ETag=f'"{found.md5}"', Last_Modified=formatdate(found.changed_at, usegmt=True))

    def _head(self, name: str, query: dict[str, str], body: bytes) -> None:
        found = self.far.of(name)
        if found is None:
            self._absent()
            return
        moment = formatdate(found.changed_at, usegmt=True)
        self.send_response(200)
        for header, value in {"ETag": f'"{found.md5}"', "Last-Modified": moment}.items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(found.size_bytes))
        self.end_headers()

    def _put(self, name: str, query: dict[str, str], body: bytes) -> None:
        if self.headers.get("If-None-Match") == "*" and self.far.of(name) is not None:
            self._fault(412, "PreconditionFailed")
            return
        self.far.put(name, body)
        self._answer(200, ETag=f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"')

    def _delete(self, name: str, query: dict[str, str], body: bytes) -> None:
        self.far.delete(name)
        self._answer(204)

    def _delete_many(self, name: str, query: dict[str, str], body: bytes) -> None:
        for key in _KEY.findall(body.decode()):
            self.far.delete(key)
        self._answer(200, b"<DeleteResult></DeleteResult>", Content_Type="application/xml")

    def _list(self, name: str, query: dict[str, str], body: bytes) -> None:
        if "uploads" in query:
            self._answer(200, b"<ListMultipartUploadsResult></ListMultipartUploadsResult>")
            return
        prefix, is_flat = query.get("prefix", ""), not query.get("delimiter")
        after = query.get("continuation-token") or query.get("start-after") or ""
        contents: list[str] = []
        folders, last, is_cut = dict[str, None](), "", False
        for each in self.far.names(prefix, after):
            if len(contents) + len(folders) >= _PAGE:
                is_cut = True
                break
            last, rest = each, each.removeprefix(prefix)
            if is_flat or "/" not in rest:
                contents.append(self._entry(each))
            else:
                folders[prefix + rest.partition("/")[0] + "/"] = None
        dirs = [f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in folders]
        more = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if is_cut else ""
        head = f"<Name>{BUCKET}</Name><EncodingType>url</EncodingType><IsTruncated>{str(is_cut).lower()}</IsTruncated>"
        text = f"<ListBucketResult>{head}{more}{''.join(contents)}{''.join(dirs)}</ListBucketResult>"
        self._answer(200, text.encode(), Content_Type="application/xml")

    def _entry(self, name: str) -> str:
        found = self.far.of(name)
        if found is None:
            return ""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(found.changed_at))
        return (
            f"<Contents><Key>{quote(name)}</Key><LastModified>{moment}</LastModified>"
            f"<ETag>&quot;{found.md5}&quot;</ETag><Size>{found.size_bytes}</Size></Contents>"
        )

    def _absent(self) -> None:
        self._fault(404, "NoSuchKey")

    def _fault(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code></Error>".encode(), Content_Type="application/xml")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""
