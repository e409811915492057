"""The whole product on an accelerator: every promise that a CPU alone cannot keep."""

from __future__ import annotations

import time

import pytest

from benchmarks.gpu_site import Site, SkippedError
from benchmarks.gpu_steps import STEPS
from magi2 import platform

LIMIT_S = 600.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A folder for all steps, each of which has stores of its own."""
    accelerator = platform.current()
    if accelerator.name == "cpu":
        pytest.skip("no accelerator here")
    return Site(tmp_path_factory.mktemp("gpu-path"), accelerator, time.monotonic() + LIMIT_S)


@pytest.mark.gpu
@pytest.mark.parametrize("step", STEPS)
def test_the_product_keeps_its_promises_on_an_accelerator(step: str, site: Site) -> None:
    try:
        STEPS[step](site)
    except SkippedError as reason:
        pytest.skip(str(reason))
