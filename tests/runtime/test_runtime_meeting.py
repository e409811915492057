"""Ranks that cannot meet say so soon, and who is missing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.ranks

MEET = """
import sys
from datetime import timedelta
from magi2.config.settings import Settings
from magi2.errors import Magi2Error
from magi2.parallel.layout import ParallelLayout
from magi2.runtime.exit_codes import exit_code
from magi2.runtime.meeting import meet

try:
    with meet(ParallelLayout.parse(sys.argv[1]), Settings(device="cpu"), timeout=timedelta(seconds=2)):
        print("met")
except Magi2Error as error:
    print(error)
    sys.exit(exit_code(error))
"""


def meet(layout: str, port: int, *, ranks: str = "2") -> subprocess.CompletedProcess[str]:
    """What rank 0 says, when it is to meet the others at a port of this host."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "LOCAL_RANK": "0"}
    environment = {**os.environ, **address, "WORLD_SIZE": ranks, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", MEET, layout]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_rank_that_does_not_come_is_an_infrastructure_error() -> None:
    ended = meet("sp2", free_port())
    assert ended.returncode == 112, ended.stderr
    assert "2 ranks" in ended.stdout or "rank 1" in ended.stdout


def test_port_that_is_taken_is_an_infrastructure_error() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        ended = meet("sp2", taken.getsockname()[1])
    assert ended.returncode == 112, ended.stderr
    assert "cannot meet" in ended.stdout and "in use" in ended.stdout.lower()


def test_environment_of_another_size_is_a_config_error() -> None:
    ended = meet("sp4", free_port())
    assert ended.returncode == 111
    assert "needs 4 ranks, WORLD_SIZE is 2" in ended.stdout


def test_single_rank_needs_nobody() -> None:
    assert meet("sp1", free_port()).stdout.endswith("met\n")
