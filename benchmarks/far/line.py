"""A slow line before a server: every answer comes later by the same time, however many are under way."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress


class SlowLine:
    """Passes on what comes to `endpoint`; the first bytes of each answer wait for `latency_s`."""

    def __init__(self, host: str, port: int, latency_s: float) -> None:
        self._target, self._latency_s = (host, port), latency_s
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                asked = threading.Event()
                threading.Thread(target=self._ask, args=(client, server, asked), daemon=True).start()
                threading.Thread(target=self._answer, args=(server, client, asked), daemon=True).start()

    @staticmethod
    def _ask(client: socket.socket, server: socket.socket, asked: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(2**16):
                asked.set()
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _answer(self, server: socket.socket, client: socket.socket, asked: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(2**16):
                if asked.is_set():
                    asked.clear()
                    time.sleep(self._latency_s)
                client.sendall(data)
        with suppress(OSError):
            client.shutdown(socket.SHUT_WR)
