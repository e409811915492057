"""Finding ffmpeg and running it: missing, broken, silent, talkative and killed programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ffmpeg as graph
import imageio_ffmpeg
import pytest

from magi2.errors import InfrastructureError, MediaError, MissingToolError
from magi2.media.ffmpeg import Ffmpeg, find_ffmpeg, run_ffmpeg


def test_the_found_program_has_every_encoder_that_delivery_needs(program: Ffmpeg) -> None:
    assert program.version
    assert {"libx264", "libx265", "libsvtav1", "aac", "ffv1"} <= program.encoders


def test_explicit_path_wins_over_the_system(program: Ffmpeg) -> None:
    assert find_ffmpeg(program.path).path == program.path


def test_without_a_system_program_the_bundled_one_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_ffmpeg().path == imageio_ffmpeg.get_ffmpeg_exe()


def test_missing_program_is_refused_with_a_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(MissingToolError, match="MAGI2_FFMPEG"):
        find_ffmpeg(str(tmp_path / "absent"))

    def nothing() -> str:
        raise RuntimeError("no ffmpeg exe could be found")

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", nothing)
    with pytest.raises(MissingToolError, match="neither on the PATH nor in imageio-ffmpeg"):
        find_ffmpeg()


def test_broken_program_is_refused_with_what_it_said(fake_program: Callable[[str], str]) -> None:
    with pytest.raises(MissingToolError, match="exits with 1: libfoo is missing"):
        find_ffmpeg(fake_program("echo libfoo is missing >&2; exit 1"))
    with pytest.raises(MissingToolError, match="is not ffmpeg"):
        find_ffmpeg(fake_program("echo hello"))


def test_broken_system_program_is_not_silently_replaced(
    fake_program: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(fake_program("exit 1"))
    path.rename(path.with_name("ffmpeg"))
    monkeypatch.setenv("PATH", f"{path.parent}:/bin:/usr/bin")
    with pytest.raises(MissingToolError, match="exits with 1"):
        find_ffmpeg()


def test_a_file_that_cannot_be_executed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ffmpeg"
    path.write_bytes(b"\x7fELF nonsense")
    path.chmod(0o755)
    with pytest.raises(MissingToolError, match="does not run"):
        find_ffmpeg(str(path))


def test_missing_encoder_names_the_available_ones() -> None:
    program = Ffmpeg("ffmpeg", "5.1", frozenset({"libx264", "aac", "mjpeg"}))
    with pytest.raises(MissingToolError, match="no encoder libx265, available: libx264"):
        program.require("libx265", "aac", known=("libx264", "libx265", "libsvtav1"))


def output(tmp_path: Path) -> object:
    return graph.input("file:/nowhere").output(str(tmp_path / "out.mp4"))


def test_failure_carries_the_last_lines_only(fake_program: Callable[[str], str], tmp_path: Path) -> None:
    body = "for i in $(seq 1 20000); do echo line $i >&2; done; echo the reason >&2; exit 7"
    program = Ffmpeg(fake_program(body), "0", frozenset())
    with pytest.raises(MediaError, match="test: ffmpeg exits with 7") as caught:
        run_ffmpeg(program, output(tmp_path), purpose="test")
    assert str(caught.value).endswith("the reason")
    assert len(str(caught.value)) < 5000


def test_killed_program_names_the_signal(fake_program: Callable[[str], str], tmp_path: Path) -> None:
    program = Ffmpeg(fake_program("kill -9 $$"), "0", frozenset())
    with pytest.raises(MediaError, match="was killed by signal 9: it said nothing"):
        run_ffmpeg(program, output(tmp_path), purpose="test")


def test_full_disk_is_worth_a_retry(fake_program: Callable[[str], str], tmp_path: Path) -> None:
    program = Ffmpeg(
        fake_program("echo av_interleaved_write_frame: No space left on device >&2; exit 1"), "0", frozenset()
    )
    with pytest.raises(InfrastructureError, match="No space left"):
        run_ffmpeg(program, output(tmp_path), purpose="test")


def test_program_that_vanished_is_a_missing_tool(tmp_path: Path) -> None:
    with pytest.raises(MissingToolError, match="does not start"):
        run_ffmpeg(Ffmpeg(str(tmp_path / "gone"), "0", frozenset()), output(tmp_path), purpose="test")
