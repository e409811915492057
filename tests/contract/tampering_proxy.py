"""A proxy before an S3 server that answers some requests by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

PAGE = b"<html>maintenance</html>"
SKIPPED = {"transfer-encoding", "connection", "date", "server", "content-length"}


@dataclass
class Proxy:
    """`answers` gives the body of an HTML page instead of the server's answer, or None; `asked` is what passed."""

    endpoint: str = ""
    answers: Callable[[str, str], bytes | None] = lambda method, path: None
    asked: list[tuple[str, str]] = field(default_factory=list)

    def answer_once(self, method: str, end: str) -> None:
        """Give the page to the next request of this method for a path with this end, and to no other."""
        left = [PAGE]

        def answers(asked: str, path: str) -> bytes | None:
            return left.pop() if left and asked == method and path.partition("?")[0].endswith(end) else None

        self.answers = answers

    def deleted(self) -> list[str]:
        """The paths that were asked to be deleted."""
        return [path for method, path in self.asked if method == "DELETE"]


@contextmanager
def tampering_proxy(upstream: str) -> Iterator[Proxy]:
    """A proxy before the server at `upstream` (http://host:port)."""
    proxy = Proxy()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            proxy.asked.append((self.command, self.path))
            if (page := proxy.answers(self.command, self.path)) is not None:
                return self._send(200, [("Content-Type", "text/html; charset=utf-8")], page)
            server = HTTPConnection(upstream.removeprefix("http://"), timeout=30)
            # The host's name is signed: the server has to hear the one that the client used.
            server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                server.putheader(name, value)
            server.endheaders(body)
            answer = server.getresponse()
            content = answer.read()
            length = answer.getheader("Content-Length") if self.command == "HEAD" else None
            self._send(answer.status, answer.getheaders(), content, length)
            server.close()

        def _send(self, status: int, headers: list[tuple[str, str]], body: bytes, length: str | None = None) -> None:
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in SKIPPED:
                    self.send_header(name, value)
            self.send_header("Content-Length", length or str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = pass_on  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    proxy.endpoint = f"http://127.0.0.1:{http.server_port}"
    try:
        yield proxy
    finally:
        http.shutdown()
        http.server_close()
