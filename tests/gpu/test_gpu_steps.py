"""What the steps on an accelerator call equal, as asked and right."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from benchmarks.gpu_site import Site, StepError, compare
from magi2 import platform

ONE = {"preview/a": {"tensors": "1"}, "mux/b": {"clip.mp4": "2"}}


def test_equal_stores_are_counted() -> None:
    assert compare(ONE, {**ONE}) == 2


@pytest.mark.parametrize(
    "other", [{**ONE, "mux/b": {"clip.mp4": "3"}}, {"preview/a": {"tensors": "1"}}, {**ONE, "decode/c": {}}, {}]
)
def test_a_byte_more_or_less_is_a_difference(other: dict[str, dict[str, str]]) -> None:
    with pytest.raises(StepError, match="differ"):
        compare(ONE, other)


def test_two_empty_stores_prove_nothing() -> None:
    with pytest.raises(StepError, match="no artifact"):
        compare({}, {})


def test_digests_are_those_of_the_manifests(tmp_path: Path) -> None:
    site = Site(tmp_path, platform.ACCELERATORS["cpu"], time.monotonic())
    folder = site.store("s") / "artifacts" / "mux" / "ab" / "abc"
    folder.mkdir(parents=True)
    manifest = {"recipe": {"stage": "mux"}, "key": "abc", "payloads": {"clip.mp4": {"sha256": "f" * 64}}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert site.digests("s") == {"mux/abc": {"clip.mp4": "f" * 64}}
