"""The example of a watermark as an installed package, without pip."""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from magi2.media.watermarks import GROUP

EXAMPLE = Path(__file__).parents[1] / "examples" / "watermark"
NAME = "example-grid"


def install_example(
    folder: Path, monkeypatch: pytest.MonkeyPatch, package: str = "example-watermark", version: str = "1.0"
) -> Path:
    """Put it where Python finds packages, by what its pyproject.toml says, perhaps under another package's name."""
    place = folder / f"site-{package}-{version}"
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = place / f"{package}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    entries = project["entry-points"][GROUP].items()
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n" + "".join(f"{key} = {value}\n" for key, value in entries))
    shutil.copy(EXAMPLE / "example_watermark.py", place)
    monkeypatch.syspath_prepend(place)
    monkeypatch.delitem(sys.modules, "example_watermark", raising=False)
    return place
