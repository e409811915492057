"""Clips rendered once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stages.stage_renders import Rendered, render_once


@pytest.fixture(scope="session")
def image(golden: Path) -> Path:
    return golden / "output" / "images" / "wide_160x90.png"


@pytest.fixture(scope="session")
def preview_render(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path, image: Path) -> Rendered:
    """125 frames, no refiner."""
    return render_once(tmp_path_factory.mktemp("preview") / "store", tiny_checkpoint, image, refined=False)


@pytest.fixture(scope="session")
def refined_render(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path, image: Path) -> Rendered:
    """249 frames."""
    return render_once(tmp_path_factory.mktemp("refined") / "store", tiny_checkpoint, image, refined=True)


@pytest.fixture
def rendered(request: pytest.FixtureRequest) -> Rendered:
    """`preview_render` or `refined_render`, whichever the test is parametrised with."""
    found: Rendered = request.getfixturevalue(request.param)
    return found
