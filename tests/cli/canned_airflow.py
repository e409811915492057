"""A server in Airflow's place, whose connections get answers that were written before."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

TOKEN = b'{"access_token": "abc"}'


def http(content: bytes, status: str = "200 OK", *, length: int | None = None) -> bytes:
    sent = len(content) if length is None else length
    head = f"HTTP/1.1 {status}\r\nContent-Length: {sent}\r\nConnection: close\r\n\r\n"
    return head.encode() + content


@contextmanager
def answering(answers: Sequence[bytes]) -> Iterator[str]:
    """A server's address; its connections get these answers in turn and end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                for answer in answers:
                    client, _ = listener.accept()
                    with client:
                        client.recv(2**16)
                        client.sendall(answer)
                        client.shutdown(socket.SHUT_WR)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://ann:secret@127.0.0.1:{listener.getsockname()[1]}"
