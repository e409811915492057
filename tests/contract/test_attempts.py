"""Attempts that end at once in two processes: what the later one tells counts, on disk and on S3."""

from __future__ import annotations

import multiprocessing
import secrets
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from magi2.artifacts import open_store
from magi2.batches.failures import load_failure, save_failure
from magi2.batches.results import read_results, write_results
from magi2.errors import ContractError, InfrastructureError
from magi2.recipes.result import StageResult
from magi2.types import Clip, StageName

ROUNDS = 8
CLIP = Clip("a kite", 1, "tiny", "a" * 64)


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.servers)])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "local":
        return str(tmp_path / "store")
    server = request.getfixturevalue("s3_server")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    return f"s3://{server.bucket}/attempts/{secrets.token_hex(8)}?endpoint={server.endpoint}"


def tell(url: str, attempt: int, barrier: Barrier) -> None:
    """One process: the first attempt lost its clip, the second made it."""
    store = open_store(url)
    lost = StageResult(StageName.MUX, CLIP, "failed", 1.0, error=ContractError("lost"))
    result = lost if attempt == 1 else StageResult(StageName.MUX, CLIP, "made", 1.0, "b" * 64)
    for batch in range(ROUNDS):
        barrier.wait(60)
        write_results(store, f"night-{batch}", 0, StageName.MUX, attempt, [result])
        error = InfrastructureError(f"attempt {attempt}")
        save_failure(store, f"night-{batch}", 0, StageName.MUX, error, attempt=attempt)


@pytest.mark.slow
def test_the_later_of_two_attempts_counts_whichever_ends_last(url: str) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    processes = [context.Process(target=tell, args=(url, attempt, barrier)) for attempt in (1, 2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    store = open_store(url)
    for batch in range(ROUNDS):
        (row,) = read_results(store, f"night-{batch}", 0, StageName.MUX)
        failure = load_failure(store, f"night-{batch}", 0, StageName.MUX)
        assert (row.state, row.key, failure and failure.error) == ("made", "b" * 64, "attempt 2")
