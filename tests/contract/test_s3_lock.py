"""A server that ignores conditions: the catalog's lock keeps manifests create-only in their stead."""

from __future__ import annotations

import multiprocessing
import secrets
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
from minio import Minio
from minio.credentials import StaticProvider

from magi2.artifacts import ManifestDraft, Recipe
from magi2.artifacts import s3 as s3_module
from magi2.artifacts.s3 import PROBE_NAME, S3Store
from magi2.catalog.lock import run_locks
from magi2.config.settings import Settings
from tests.real_servers import postgresql

WRITERS = 8
RECIPE = Recipe("preview", 1, seed=7)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.servers)])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Settings]:
    if request.param == "sqlite":
        yield Settings(catalog=f"sqlite:///{tmp_path / 'catalog.sqlite'}")
        return
    with postgresql() as server:
        yield Settings(catalog=str(server.create("locks")))


@pytest.fixture
def careless_store(
    s3_server: Any, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[S3Store]:
    """A store whose server takes every conditional write, and whose writers are slow between looking and writing."""

    def create(client: Minio, bucket: str, name: str, content: bytes) -> bool:
        client._put_object(bucket, name, content, {})
        return True

    replace = S3Store._replace

    def dawdle(store: S3Store, name: str, content: bytes) -> None:
        time.sleep(1.0)
        replace(store, name, content)

    monkeypatch.setattr(s3_module, "create_object", create)
    monkeypatch.setattr(S3Store, "_replace", dawdle)
    yield S3Store(
        s3_server.bucket,
        endpoint=s3_server.endpoint,
        prefix=f"lock/{secrets.token_hex(8)}",
        credentials=StaticProvider(s3_server.access_key, s3_server.secret_key),
        scratch=tmp_path / "scratch",
        lock=run_locks(settings),
    )


@pytest.mark.slow
def test_one_of_eight_processes_wins_on_a_server_that_ignores_conditions(
    careless_store: S3Store, tmp_path: Path
) -> None:
    def work(number: int, barrier: Barrier) -> None:
        with careless_store.stage_folder("preview", RECIPE.key) as folder:
            (folder / "a.bin").write_bytes(b"%d" % number)
            barrier.wait(30)
            manifest = careless_store.publish(ManifestDraft(RECIPE, host=str(number)), {"a.bin": folder / "a.bin"})
        (tmp_path / f"told-{number}").write_bytes(manifest.to_bytes())

    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(WRITERS)
    processes = [context.Process(target=work, args=(number, barrier)) for number in range(WRITERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * WRITERS
    standing = careless_store.find("preview", RECIPE.key)
    assert standing is not None
    assert {path.read_bytes() for path in tmp_path.glob("told-*")} == {standing.to_bytes()}
    assert careless_store.fetch("preview", RECIPE.key, "a.bin").read_bytes() == standing.host.encode()
    assert len(list(careless_store._list("artifacts"))) == 2


def test_self_test_passes_with_a_lock_and_says_so(careless_store: S3Store) -> None:
    assert "by a lock since this server ignores If-None-Match" in careless_store.self_test()
    assert [blob.name for blob in careless_store._list("doctor")] == [PROBE_NAME]


def test_run_without_a_catalog_has_no_lock() -> None:
    assert run_locks(Settings(catalog=None)) is None
