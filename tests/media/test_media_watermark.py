"""Watermarks of other packages: allowed and installed or refused, known by their code, held to what they promise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from magi2.errors import ConfigError, MediaError
from magi2.media.ffmpeg import Ffmpeg
from magi2.media.reading import read_frames
from magi2.media.watermarked import write_watermarked
from magi2.media.watermarks import find_watermark, load_watermark
from tests.media.media_clips import moving_frames, write_lossless
from tests.watermark_package import NAME, install_example

ID = "a5" * 32
FPS = Fraction(25)

Install = Callable[..., Path]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs the example, perhaps under another package's name."""
    return partial(install_example, tmp_path, monkeypatch)


def test_a_watermark_is_known_by_name_version_and_code_without_being_run(installed: Install) -> None:
    code = installed() / "example_watermark.py"
    found = find_watermark(NAME, [NAME])
    assert (found.name, found.version, len(found.sha256)) == (NAME, "1.0", 64)
    assert find_watermark(NAME, [NAME, "other"]) == found
    code.write_text(code.read_text().replace("STEP = 2", "STEP = 3"))
    assert find_watermark(NAME, [NAME]).sha256 != found.sha256
    assert "example_watermark" not in sys.modules


def test_every_file_of_a_package_counts(installed: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    place = installed()
    (place / "example_watermark").mkdir()
    (place / "example_watermark.py").rename(place / "example_watermark" / "__init__.py")
    before = find_watermark(NAME, [NAME])
    (place / "example_watermark" / "weights.bin").write_bytes(b"1")
    assert find_watermark(NAME, [NAME]) != before
    (place / "example_watermark" / "weights.bin").unlink()
    assert find_watermark(NAME, [NAME]) == before


def test_what_is_not_allowed_not_installed_or_doubtful_is_refused(installed: Install) -> None:
    with pytest.raises(ConfigError, match=f"'{NAME}' must come from one package, it comes from no package"):
        find_watermark(NAME, [NAME])
    place = installed()
    for allowed, names in (((), "none"), (("other",), "other")):
        with pytest.raises(ConfigError, match=f"'{NAME}' is not allowed here, MAGI2_WATERMARKS allows {names}"):
            find_watermark(NAME, allowed)
    (place / "example_watermark.py").unlink()
    with pytest.raises(ConfigError, match="there is no module example_watermark"):
        find_watermark(NAME, [NAME])
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_watermark(NAME)
    installed("another-package")
    with pytest.raises(ConfigError, match="it comes from another-package, example-watermark"):
        find_watermark(NAME, [NAME])


def test_the_example_puts_its_grid_on_every_frame_and_on_equal_ones_the_same(
    installed: Install, tmp_path: Path, program: Ffmpeg
) -> None:
    installed()
    video = write_lossless(tmp_path / "in.mkv", moving_frames(9, 32, 48).clamp(2, 253), program=program)
    for name, content_id in (("a", ID), ("b", ID), ("c", "5a" * 32)):
        mark = load_watermark(NAME)
        write_watermarked(video, tmp_path / f"{name}.mkv", mark, content_id, fps=FPS, ffmpeg=program)
    first, second, other = ((tmp_path / f"{name}.mkv").read_bytes() for name in "abc")
    assert first == second != other
    before, after = (torch.stack(list(read_frames(path))).int() for path in (video, tmp_path / "a.mkv"))
    grid = (after - before)[0, :, :, 0]
    assert torch.equal(after - before, grid[None, :, :, None].expand(9, 32, 48, 3))
    bits = torch.tensor([int(bit) for bit in f"{int(ID, 16):0256b}"]).reshape(16, 16)
    assert torch.equal(grid[::2, ::3], torch.where(bits == 1, 2, -2).int())


Frames = Iterable[Any]


def fewer(frames: Frames, content_id: str) -> Iterator[Any]:
    yield from list(frames)[1:]


def more(frames: Frames, content_id: str) -> Iterator[Any]:
    for frame in frames:
        yield from (frame, frame)


def smaller(frames: Frames, content_id: str) -> Iterator[Any]:
    return (frame[1:] for frame in frames)


def floating(frames: Frames, content_id: str) -> Iterator[Any]:
    return (frame.astype(np.float32) for frame in frames)


def nothing(frames: Frames, content_id: str) -> Iterator[Any]:
    return (None for _ in frames)


def failing(frames: Frames, content_id: str) -> Iterator[Any]:
    raise ZeroDivisionError("by a watermark")


def no_generator(frames: Frames, content_id: str) -> Any:
    return None


@pytest.mark.parametrize("mark", [fewer, more, smaller, floating, nothing, failing, no_generator])
def test_a_watermark_that_breaks_its_promise_fails_the_clip_and_leaves_no_file(
    mark: Any, tmp_path: Path, program: Ffmpeg
) -> None:
    video = write_lossless(tmp_path / "in.mkv", moving_frames(3, 32, 48), program=program)
    with pytest.raises(MediaError, match="the watermark"):
        write_watermarked(video, tmp_path / "out.mkv", mark, ID, fps=FPS, ffmpeg=program)
    assert [path.name for path in tmp_path.iterdir()] == ["in.mkv"]
