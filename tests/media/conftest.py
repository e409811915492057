"""Small clips, and programs that pretend to be ffmpeg."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from magi2.media.audio import write_audio
from magi2.media.ffmpeg import Ffmpeg, find_ffmpeg
from tests.media.media_clips import moving_frames, tone, write_lossless


@pytest.fixture(scope="session")
def program() -> Ffmpeg:
    return find_ffmpeg()


@pytest.fixture
def fake_program(tmp_path: Path) -> Callable[[str], str]:
    """Write an executable shell script with the given body; returns its path."""

    def make(body: str) -> str:
        path = tmp_path / "fake-ffmpeg"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory, program: Ffmpeg) -> tuple[Path, Path]:
    """Lossless picture and sound of a whole clip: 249 frames of 96 x 64, ten seconds of sound."""
    folder = tmp_path_factory.mktemp("clip")
    video = write_lossless(folder / "video.mkv", moving_frames(249, 64, 96), program=program)
    write_audio(folder / "audio.wav", tone(441_000))
    return video, folder / "audio.wav"
