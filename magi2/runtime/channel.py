"""The socket between a launcher and the ranks of its group.

Every rank connects by itself. That gives each rank a stream of its own, which
the kernel ends when the rank dies, tells the launcher the rank's process id, and carries the accelerator lock to it.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from magi2.errors import ContractError, InfrastructureError
from magi2.runtime.events import MAX_LINE_BYTES, Event, Hello, from_line

logger = logging.getLogger(__name__)

_NAME = "events.sock"
_WELCOME = b"!"
_CONNECT_TIMEOUT_S = 60.0
_READ_BYTES = 64 * 1024
_READS_A_TURN = 64
_MAX_COMPLAINTS = 3


def connect(folder: Path) -> socket.socket:
    """The connection to the launcher of the job in `folder`. The lock that comes with it stays until this process dies.

    Raises: InfrastructureError when no launcher answers.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _address(folder) as address:
            connection.settimeout(_CONNECT_TIMEOUT_S)
            connection.connect(address)
        welcome, fds, _, _ = socket.recv_fds(connection, len(_WELCOME), maxfds=64)
    except OSError as error:
        connection.close()
        raise InfrastructureError(f"{folder}: the launcher does not answer: {error}") from error
    for fd in fds:
        os.set_inheritable(fd, False)
    if welcome != _WELCOME:
        raise InfrastructureError(f"{folder}: the launcher went away")
    connection.settimeout(None)
    return connection


@dataclass(frozen=True)
class Message:
    """An event of a rank, or None for the end of its connection."""

    rank: int
    event: Event | None


class Listener:
    """The launcher's end. `fds` are the lock's, given to every rank."""

    def __init__(self, folder: Path, fds: Sequence[int] = ()) -> None:
        self._fds = tuple(fds)
        self._selector = selectors.DefaultSelector()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _address(folder) as address:
            self._socket.bind(address)
        self._socket.listen(64)
        self._socket.setblocking(False)
        self._selector.register(self._socket, selectors.EVENT_READ)
        self.pids: dict[int, int] = {}

    def poll(self, timeout_s: float) -> list[Message]:
        """What was heard, in order for each rank; ranks whose connection ended come first.

        A rank that is killed makes its peers fail; this order puts the cause before consequences seen with it.
        """
        heard: list[tuple[bool, list[Message]]] = []
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._socket:
                self._accept()
            else:
                heard.append(self._read(key.data))
        heard.sort(key=lambda item: not item[0])
        return [message for _, messages in heard for message in messages]

    def close(self) -> None:
        """Close all connections."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Peer):
                key.data.connection.close()
        self._selector.close()
        self._socket.close()

    def _accept(self) -> None:
        connection, _ = self._socket.accept()
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        peer = _Peer(connection, pid=struct.unpack("3i", credentials)[0])
        try:
            socket.send_fds(connection, [_WELCOME], self._fds)
        except OSError:
            connection.close()  # it died meanwhile
            return
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, peer)

    def _read(self, peer: _Peer) -> tuple[bool, list[Message]]:
        messages: list[Message] = []
        for _ in range(_READS_A_TURN):
            try:
                data = peer.connection.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except ConnectionError:
                data = b""
            if not data:
                self._selector.unregister(peer.connection)
                peer.connection.close()
                if peer.rank is not None:
                    messages.append(Message(peer.rank, None))
                return True, messages
            for event in peer.events(data):
                if isinstance(event, Hello):
                    peer.rank = event.rank
                    self.pids[event.rank] = peer.pid
                if peer.rank is not None:
                    messages.append(Message(peer.rank, event))
        return False, messages


@dataclass
class _Peer:
    connection: socket.socket
    pid: int
    rank: int | None = None
    _pending: bytearray = field(default_factory=bytearray)
    _is_skipping: bool = False
    _complaints: int = 0

    def events(self, data: bytes) -> Iterator[Event]:
        """The events that `data` completes; what is none is logged and skipped."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole = bytes(self._pending) + line
            self._pending.clear()
            if not self._is_skipping and (event := self._parse(whole)) is not None:
                yield event
            self._is_skipping = False
        self._pending += rest
        if len(self._pending) > MAX_LINE_BYTES:
            self._pending.clear()
            self._is_skipping = True
            self._complain(f"a line is longer than {MAX_LINE_BYTES} bytes")

    def _parse(self, line: bytes) -> Event | None:
        try:
            return from_line(line)
        except ContractError as error:
            self._complain(str(error))
            return None

    def _complain(self, reason: str) -> None:
        self._complaints += 1
        if self._complaints <= _MAX_COMPLAINTS:
            logger.warning("rank %s (process %d): skipped what is no event: %s", self.rank, self.pid, reason)
        if self._complaints == _MAX_COMPLAINTS:
            logger.warning("rank %s (process %d): more of it is skipped in silence", self.rank, self.pid)


@contextmanager
def _address(folder: Path) -> Iterator[str]:
    """The socket's address, however long the folder's path is: the kernel allows 107 bytes."""
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/{_NAME}"
    finally:
        os.close(handle)
