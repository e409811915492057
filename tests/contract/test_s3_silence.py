"""A server that takes requests and says nothing, or says it one byte at a time, is retryable trouble and no wait."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import urllib3
from minio.credentials import StaticProvider

from magi2.artifacts import s3 as s3_module
from magi2.artifacts.s3 import S3Store
from magi2.errors import InfrastructureError

GUARD_S = 30.0  # a wait without a limit ends here, with another error than the one expected


@contextmanager
def answering(answer: Callable[[socket.socket], object]) -> Iterator[tuple[str, list[socket.socket]]]:
    """A server's address, and its connections, each of which `answer` serves in a thread."""
    taken: list[socket.socket] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(client: socket.socket) -> None:
        with suppress(OSError):
            client.recv(2**16)
            answer(client)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                taken.append(client)
                threading.Thread(target=serve, args=(client,), daemon=True).start()

    def close() -> None:
        for each in (listener, *taken):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    guard = threading.Timer(GUARD_S, close)
    guard.daemon = True
    guard.start()
    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", taken
    finally:
        guard.cancel()
        close()


def open_at(endpoint: str, scratch: Path) -> S3Store:
    credentials = StaticProvider("a", "b")
    return S3Store("clips", endpoint=endpoint, region="us-east-1", credentials=credentials, scratch=scratch)


ACTIONS: dict[str, Callable[[S3Store], object]] = {
    "read": lambda store: store.get_document("report.json"),
    "write": lambda store: store.put_document("report.json", b"{}"),
    "list": lambda store: list(store.list_documents("batches")),
    "remove": lambda store: store.remove_document("report.json"),
    "self_test": lambda store: store.self_test(),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_silent_server_is_asked_twice_and_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setattr(s3_module, "_TIMEOUT", urllib3.Timeout(connect=1, read=0.2))
    with answering(lambda client: None) as (endpoint, taken):
        with pytest.raises(InfrastructureError, match=rf"{endpoint}.*timed out") as caught:
            ACTIONS[action](open_at(endpoint, tmp_path))
        assert len(taken) == 2
    assert caught.value.retryable and "\n" not in str(caught.value)


def test_server_that_asks_for_an_hour_is_not_waited_for_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert s3_module._RETRIES.retry_after_max == s3_module.LONGEST_WAIT_S
    monkeypatch.setattr(s3_module, "_RETRIES", s3_module._RETRIES.new(total=1, backoff_factor=0, retry_after_max=0.5))
    busy = b"HTTP/1.1 503 Busy\r\nRetry-After: 3600\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with answering(lambda client: client.sendall(busy)) as (endpoint, taken):
        with pytest.raises(InfrastructureError, match="503"):
            open_at(endpoint, tmp_path).get_document("report.json")
        assert len(taken) == 2


@pytest.mark.parametrize("way", ["document", "download", "digest"])
def test_answer_that_dribbles_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(s3_module, "LONGEST_ANSWER_S", 0.3)

    def dribble(client: socket.socket) -> None:
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
        for _ in range(10_000):
            client.sendall(b"x")
            time.sleep(0.05)

    with answering(dribble) as (endpoint, _):
        store = open_at(endpoint, tmp_path)
        ways: dict[str, Callable[[str], object]] = {
            "document": store._read,
            "download": store._download,
            "digest": store._sha256,
        }
        with pytest.raises(InfrastructureError, match=r"bytes came in \d+ s"):
            ways[way]("documents/report.json")


def test_answer_that_ends_too_early_is_no_content(tmp_path: Path) -> None:
    short = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\nbegun"

    def cut(client: socket.socket) -> None:
        client.sendall(short)
        client.shutdown(socket.SHUT_RDWR)

    with answering(cut) as (endpoint, _), pytest.raises(InfrastructureError):
        open_at(endpoint, tmp_path)._read("documents/report.json")
