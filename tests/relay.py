"""A TCP port before a server, which can refuse, fall silent and come back, as a network or a server does."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path

GUARD_S = 30.0  # a wait without a limit ends here, with another error than the one expected


class Relay:
    """Passes on what comes to `port` to a server's Unix socket or address, and nothing any more once it is `mute`.

    It closes after `guard_s`; 0 for never.
    """

    def __init__(self, target: Path | tuple[str, int], *, guard_s: float = GUARD_S) -> None:
        self.mute = threading.Event()
        self._target = target
        self.port = 0
        self.come_back()
        self._guard = threading.Timer(guard_s, self.close) if guard_s else None
        if self._guard:
            self._guard.daemon = True
            self._guard.start()

    def come_back(self) -> None:
        """Take connections, also after it refused them."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, args=(self._listener, self._open), daemon=True).start()

    def refuse(self) -> None:
        """Cut every connection and take none."""
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def close(self) -> None:
        if self._guard:
            self._guard.cancel()
        self.refuse()

    def _accept(self, listener: socket.socket, opened: list[socket.socket]) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = self._connect()
                opened += [client, server]
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _connect(self) -> socket.socket:
        if isinstance(self._target, tuple):
            return socket.create_connection(self._target)
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(self._target))
        return server

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(2**16):
                if not self.mute.is_set():
                    sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
