"""Finding ffmpeg and running it: missing, broken, silent, talkative and killed programs."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import ffmpeg as graph
import imageio_ffmpeg
import pytest
import torch

from magi2.errors import InfrastructureError, MediaError, MissingToolError
from magi2.media import ffmpeg as ffmpeg_module
from magi2.media.ffmpeg import Ffmpeg, find_ffmpeg, run_ffmpeg
from magi2.media.lossless import LosslessWriter


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


@pytest.mark.parametrize("body", ["exec sleep 20", "echo at work >&2; exec sleep 20"])
def test_program_that_never_ends_is_ended_by_name_and_limit(
    fake_program: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.setattr(ffmpeg_module, "RUN_TIMEOUT_S", 0.3)
    program = Ffmpeg(fake_program(body), "0", frozenset())
    with pytest.raises(InfrastructureError, match=r"fake-ffmpeg was ended, since it did not go on for 0\.3 s"):
        run_ffmpeg(program, output(tmp_path), purpose="test")


@pytest.mark.parametrize("body", ["exec sleep 20", "exec <&-; exec sleep 20"], ids=["silent", "deaf"])
def test_program_that_takes_no_frame_is_ended_by_name_and_limit(
    fake_program: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.setattr(ffmpeg_module, "RUN_TIMEOUT_S", 0.3)
    program = Ffmpeg(fake_program(body), "0", frozenset({"ffv1"}))
    writer = LosslessWriter(tmp_path / "v.mkv", width=512, height=512, fps=Fraction(25), ffmpeg=program)
    with pytest.raises(InfrastructureError, match=r"fake-ffmpeg was ended"), writer:
        writer.write(torch.zeros(1, 512, 512, 3, dtype=torch.uint8))  # more than a pipe holds
    assert [path.name for path in tmp_path.iterdir()] == ["fake-ffmpeg"]


@pytest.mark.parametrize("option", ["-version", "-encoders"])
def test_program_that_does_not_answer_is_refused_by_name_and_limit(
    fake_program: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr(ffmpeg_module, "CHECK_TIMEOUT_S", 0.5)
    body = f'for word; do [ "$word" = {option} ] && exec sleep 20; done; echo ffmpeg version 9'
    with pytest.raises(MissingToolError, match=r"fake-ffmpeg does not run: .*timed out after 0\.5 seconds"):
        find_ffmpeg(fake_program(body))


def test_program_that_vanished_is_a_missing_tool(tmp_path: Path) -> None:
    with pytest.raises(MissingToolError, match="does not start"):
        run_ffmpeg(Ffmpeg(str(tmp_path / "gone"), "0", frozenset()), output(tmp_path), purpose="test")
