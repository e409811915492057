"""Fixtures shared by every test."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of the golden vectors."""
    return GOLDEN


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The accelerator when there is one (set MAGI2_TEST_DEVICE to choose), else the CPU."""
    chosen = os.environ.get("MAGI2_TEST_DEVICE")
    device = torch.device(chosen or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    return device
