"""A retention that never rests, in a process of its own, takes nothing that is needed: on a disk and in a bucket."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from magi2.artifacts import open_store
from tests.real_servers import S3Server
from tests.render_helpers import SMALL

pytestmark = pytest.mark.processes


@pytest.fixture(
    params=[pytest.param("disk", marks=pytest.mark.faults), pytest.param("s3", marks=pytest.mark.deployment)]
)
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty store."""
    if request.param == "disk":
        return (tmp_path / "store").as_uri()
    server: S3Server = request.getfixturevalue("s3_server")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    return f"s3://{server.bucket}/{tmp_path.name}?endpoint={server.endpoint}"


def racer(side: str, url: str, rounds: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.contract.lease_racer", side, url, str(rounds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@contextmanager
def collecting(url: str) -> Iterator[None]:
    """Retention that keeps nothing for a day, again and again, in another process."""
    collector = racer("collects", url)
    try:
        assert collector.stdout is not None and collector.stdout.readline() == "ready\n"
        yield
        assert collector.poll() is None, "the retention ended by itself"
    finally:
        collector.kill()
        collector.communicate()


def test_what_is_found_under_a_lease_is_there_when_it_is_read(url: str) -> None:
    with collecting(url):
        said, _ = racer("renders", url, 60).communicate(timeout=300)
    counts = re.fullmatch(r"made (\d+) reused (\d+)\n", said)
    assert counts, said
    assert int(counts[1]) > 1 and int(counts[2]) > 1, f"no race: {said}"


def test_clips_are_delivered_again_while_retention_takes_their_intermediates(
    url: str, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    batch = tmp_path / "batch.jsonl"
    batch.write_text("".join(json.dumps({"prompt": f"a kite over dune {row}"}) + "\n" for row in range(3)))
    catalog = f"sqlite:///{tmp_path}/catalog.sqlite"
    settings = {"MAGI2_CKPT_ROOT": str(tiny_checkpoint), "MAGI2_STORE": url, "MAGI2_CATALOG": catalog}
    store = open_store(url, scratch=tmp_path / "scratch")

    def deliver(crf: int) -> None:
        changes = [f"--set={change}" for change in (*SMALL, f"delivery.crf={crf}")]
        options = ["--prompts", str(batch), "--profile", "tiny-preview", "--out", str(tmp_path / "out"), *changes]
        command = [sys.executable, "-m", "magi2.cli.main", "render", *options]
        done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]

    deliver(20)
    with collecting(url):
        for crf in (21, 22, 23):
            deadline = time.monotonic() + 60
            while any(True for _ in store.keys("decode")):
                assert time.monotonic() < deadline, "nothing is removed: no race"
                time.sleep(0.1)
            deliver(crf)
    assert sum(1 for _ in store.keys("mux")) == 12
