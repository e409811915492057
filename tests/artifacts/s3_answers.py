"""A server that answers whatever it is asked in one way, as something else than S3 does, or S3 in trouble."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

HTML, XML = "text/html", "application/xml"
PAGE = b"<!DOCTYPE html>\n<html>\n<body><br>password hunter2</body></html>"
SLOW = b"<Error><Code>SlowDown</Code>\n<Message>reduce\nyour rate</Message></Error>"


@contextmanager
def server(status: int, kind: str, body: bytes, *, sent: int | None = None) -> Iterator[tuple[str, list[str]]]:
    """Answers whatever is asked in the same way; its address and the methods that were asked for.

    Of the body it announces all and sends the first `sent` bytes.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            asked.append(self.command)
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self.send_response(status)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[:sent])

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}", asked
    finally:
        http.shutdown()
        http.server_close()
