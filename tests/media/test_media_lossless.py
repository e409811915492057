"""The lossless intermediate: bit-equal, reproducible, and gone when anything fails."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import pytest
import torch

from magi2.errors import ContractError, MediaError, MissingToolError
from magi2.media.ffmpeg import Ffmpeg
from magi2.media.lossless import LosslessWriter
from magi2.media.probe import probe
from magi2.media.reading import count_frames, read_frames
from tests.media.media_clips import moving_frames, write_lossless


def random_frames(count: int, height: int, width: int) -> torch.Tensor:
    shape = (count, height, width, 3)
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(9), dtype=torch.uint8)


@pytest.mark.parametrize(("height", "width"), [(64, 96), (17, 33), (2, 2), (1, 1), (1, 40), (135, 241)])
def test_frames_come_back_bit_equal(tmp_path: Path, program: Ffmpeg, height: int, width: int) -> None:
    frames = random_frames(7, height, width)
    path = write_lossless(tmp_path / "v.mkv", frames, program=program)
    assert torch.equal(torch.stack(list(read_frames(path))), frames)
    assert count_frames(path) == 7


@pytest.mark.parametrize("fps", [Fraction(25, 2), Fraction(25)])
def test_container_states_size_rate_and_duration(tmp_path: Path, program: Ffmpeg, fps: Fraction) -> None:
    path = write_lossless(tmp_path / "v.mkv", random_frames(25, 16, 32), program=program, fps=fps)
    video = probe(path).video
    assert video is not None
    assert (video.codec, video.width, video.height, video.fps, video.frame_count) == ("ffv1", 32, 16, fps, 25)
    assert video.duration_s == pytest.approx(25 / fps, abs=0.002)


def test_same_frames_give_same_bytes_whatever_the_windows(tmp_path: Path, program: Ffmpeg) -> None:
    frames = moving_frames(20, 48, 64)
    first = write_lossless(tmp_path / "a.mkv", frames, program=program)
    with LosslessWriter(tmp_path / "b.mkv", width=64, height=48, fps=Fraction(25), ffmpeg=program) as writer:
        for window in frames.split(3):
            writer.write(window)
    assert writer.frame_count == 20
    assert first.read_bytes() == (tmp_path / "b.mkv").read_bytes()


@pytest.mark.parametrize("between", [1, 4])
def test_chosen_frames_are_those_of_a_reader_of_all(tmp_path: Path, between: int) -> None:
    """Others are passed over, as far as no chosen one is made from them."""
    path = tmp_path / "v.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=25, width=32, height=16, pix_fmt="bgr0", options={"g": str(between)})
        for frame in moving_frames(11, 16, 32).numpy():
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    every = list(read_frames(path))
    for chosen in ({0}, {10}, {2, 3, 9}, {5}, set(range(11)), {7, 40}, set()):
        found = list(read_frames(path, indices=frozenset(chosen)))
        assert len(found) == len(chosen & set(range(11)))
        assert all(torch.equal(frame, every[index]) for frame, index in zip(found, sorted(chosen), strict=False))


def test_chosen_frames_are_read_in_order(tmp_path: Path, program: Ffmpeg) -> None:
    frames = random_frames(9, 8, 8)
    path = write_lossless(tmp_path / "v.mkv", frames, program=program)
    assert torch.equal(torch.stack(list(read_frames(path, indices=frozenset({7, 2})))), frames[[2, 7]])


def test_killed_ffmpeg_is_an_error_and_leaves_no_file(tmp_path: Path, program: Ffmpeg) -> None:
    writer = LosslessWriter(tmp_path / "v.mkv", width=256, height=256, fps=Fraction(25), ffmpeg=program)
    with pytest.raises(MediaError, match=f"killed by signal {int(signal.SIGKILL)}"), writer:
        writer.write(random_frames(2, 256, 256))
        os.kill(writer.pid, signal.SIGKILL)
        for _ in range(100):
            writer.write(random_frames(2, 256, 256))
    assert list(tmp_path.iterdir()) == []


def test_ffmpeg_killed_after_the_last_frame_is_an_error(tmp_path: Path, program: Ffmpeg) -> None:
    writer = LosslessWriter(tmp_path / "v.mkv", width=8, height=8, fps=Fraction(25), ffmpeg=program)
    with pytest.raises(MediaError, match="killed by signal"), writer:
        writer.write(random_frames(2, 8, 8))
        os.kill(writer.pid, signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_block_passes_and_leaves_no_file(tmp_path: Path, program: Ffmpeg) -> None:
    writer = LosslessWriter(tmp_path / "v.mkv", width=8, height=8, fps=Fraction(25), ffmpeg=program)
    with pytest.raises(OSError, match="decoder lost"), writer:
        writer.write(random_frames(2, 8, 8))
        raise OSError("decoder lost")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_the_earlier_file(tmp_path: Path, program: Ffmpeg) -> None:
    path = write_lossless(tmp_path / "v.mkv", random_frames(3, 8, 8), program=program)
    before = path.read_bytes()
    with pytest.raises(RuntimeError), LosslessWriter(path, width=8, height=8, fps=Fraction(25), ffmpeg=program):
        raise RuntimeError
    assert path.read_bytes() == before


def test_program_that_dies_at_once_is_reported_with_its_words(
    tmp_path: Path, fake_program: Callable[[str], str]
) -> None:
    dying = Ffmpeg(fake_program("echo cannot allocate >&2; exit 1"), "0", frozenset({"ffv1"}))
    writer = LosslessWriter(tmp_path / "v.mkv", width=256, height=256, fps=Fraction(25), ffmpeg=dying)
    with pytest.raises(MediaError, match="cannot allocate"), writer:
        for _ in range(100):
            writer.write(random_frames(1, 256, 256))
    assert [path.name for path in tmp_path.iterdir()] == ["fake-ffmpeg"]


def test_talkative_program_does_not_block_the_pipe(tmp_path: Path, fake_program: Callable[[str], str]) -> None:
    body = "yes 'warning: something' | head -c 1000000 >&2; cat > /dev/null; exit 3"
    talkative = Ffmpeg(fake_program(body), "0", frozenset({"ffv1"}))
    writer = LosslessWriter(tmp_path / "v.mkv", width=256, height=256, fps=Fraction(25), ffmpeg=talkative)
    with pytest.raises(MediaError, match="exits with 3"), writer:
        writer.write(random_frames(4, 256, 256))


def test_unwritable_target_and_missing_encoder_stop_before_anything_runs(tmp_path: Path, program: Ffmpeg) -> None:
    (tmp_path / "taken").mkdir()
    for target in (tmp_path / "taken", tmp_path / "absent/v.mkv"):
        writer = LosslessWriter(target, width=8, height=8, fps=Fraction(25), ffmpeg=program)
        with pytest.raises(MediaError, match="cannot write"), writer:
            pytest.fail("the block ran")
    bare = Ffmpeg(program.path, program.version, frozenset())
    with (
        pytest.raises(MissingToolError, match="ffv1"),
        LosslessWriter(tmp_path / "v.mkv", width=8, height=8, fps=Fraction(25), ffmpeg=bare),
    ):
        pytest.fail("the block ran")


def test_no_frame_at_all_is_an_error(tmp_path: Path, program: Ffmpeg) -> None:
    writer = LosslessWriter(tmp_path / "v.mkv", width=8, height=8, fps=Fraction(25), ffmpeg=program)
    with pytest.raises(MediaError, match="no frame was written"), writer:
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("frames", [random_frames(1, 8, 9), random_frames(1, 8, 8).float(), random_frames(1, 8, 8)[0]])
def test_frames_of_another_shape_are_refused(tmp_path: Path, program: Ffmpeg, frames: torch.Tensor) -> None:
    writer = LosslessWriter(tmp_path / "v.mkv", width=8, height=8, fps=Fraction(25), ffmpeg=program)
    with pytest.raises(ContractError, match="frames are"), writer:
        writer.write(frames)


def test_memory_stays_flat_while_frames_stream(tmp_path: Path, program: Ffmpeg) -> None:
    window = random_frames(4, 272, 480)
    with LosslessWriter(tmp_path / "v.mkv", width=480, height=272, fps=Fraction(25), ffmpeg=program) as writer:
        writer.write(window)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(24):
            writer.write(window)
    grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown_bytes < 16 * 2**20  # 96 frames are 38 MB


def test_a_truncated_file_is_refused(tmp_path: Path, program: Ffmpeg) -> None:
    path = write_lossless(tmp_path / "v.mkv", random_frames(4, 64, 64), program=program)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(MediaError, match=r"v\.mkv"):
        list(read_frames(path))
    with pytest.raises(MediaError, match="no such media file"):
        list(read_frames(tmp_path / "absent.mkv"))
