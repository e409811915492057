"""What is said of torch without importing it agrees with torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util

import pytest
import torch

from magi2.stages.layouts import is_cpu, is_cpu_only


@pytest.mark.parametrize(
    ("version", "musa", "expected"),
    [
        ("2.13.0+cpu", False, True),
        ("2.13.0+cpu", True, False),
        ("2.13.0+cu126", False, False),
        ("2.13.0", False, False),
    ],
)
def test_only_a_cpu_build_without_musa_has_no_accelerator(
    version: str, musa: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if musa else None)
    assert is_cpu_only() is expected


def test_a_cpu_build_here_has_no_accelerator() -> None:
    assert not (is_cpu_only() and torch.cuda.is_available())


@pytest.mark.parametrize(
    ("device", "version", "expected"),
    [
        ("cpu", "2.13.0+cu126", True),
        ("cpu:0", "2.13.0+cu126", True),
        ("cuda:1", "2.13.0+cpu", False),
        (None, "2.13.0+cpu", True),
        (None, "2.13.0+cu126", False),
    ],
)
def test_device_is_the_cpu_when_it_says_so_or_torch_has_nothing_else(
    device: str | None, version: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert is_cpu(device) is expected
