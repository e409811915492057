"""Probing, checking and picturing a finished clip."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from PIL import Image

from magi2.errors import MediaError
from magi2.media.audio import write_audio
from magi2.media.deliver import deliver
from magi2.media.delivery import DeliverySpec
from magi2.media.ffmpeg import Ffmpeg
from magi2.media.poster import write_contact_sheet, write_poster, write_thumbnail
from magi2.media.probe import ExpectedClip, MediaProbe, check_clip, probe
from tests.media.media_clips import moving_frames, tone, write_lossless

EXPECTED = ExpectedClip(codec="h264", width=96, height=64, frame_count=249, fps=Fraction(25))


@pytest.fixture(scope="module")
def delivered(tmp_path_factory: pytest.TempPathFactory, program: Ffmpeg, clip: tuple[Path, Path]) -> Path:
    target = tmp_path_factory.mktemp("delivered") / "clip.mp4"
    spec = DeliverySpec(preset="ultrafast")
    deliver(*clip, target, spec, fps=Fraction(25), frame_count=249, metadata={"title": "t"}, ffmpeg=program)
    return target


@pytest.fixture(scope="module")
def found(delivered: Path) -> MediaProbe:
    return probe(delivered)


def test_report_is_plain_json(found: MediaProbe, delivered: Path) -> None:
    report = json.loads(json.dumps(found.as_json()))
    assert report["size_bytes"] == delivered.stat().st_size
    assert report["video"]["fps"] == "25"
    assert report["video"]["frame_count"] == 249
    assert report["audio"]["duration_s"] == pytest.approx(9.96)
    assert report["duration_s"] == pytest.approx(9.96)
    assert report["metadata"]["title"] == "t"


def test_the_planned_clip_passes(found: MediaProbe) -> None:
    check_clip(found, EXPECTED)


def test_every_difference_is_named_at_once(found: MediaProbe) -> None:
    other = ExpectedClip("hevc", 98, 64, 250, Fraction(25, 2), audio_codec="opus", sample_rate_hz=48_000, channels=1)
    with pytest.raises(MediaError) as caught:
        check_clip(found, other)
    for part in ("codec h264, want hevc", "size 96x64, want 98x64", "frames 249, want 250", "fps 25, want 25/2"):
        assert part in str(caught.value)
    for part in ("audio codec aac, want opus", "sample rate 44100, want 48000", "channels 2, want 1"):
        assert part in str(caught.value)
    assert "picture lasts 9.960 s, want 20.000 s; sound lasts 9.960 s, want 20.000 s" in str(caught.value)


def test_sound_longer_than_the_picture_is_noticed(found: MediaProbe) -> None:
    assert found.audio is not None
    longer = dataclasses.replace(found, audio=dataclasses.replace(found.audio, duration_s=10.0))
    with pytest.raises(MediaError, match=r"sound lasts 10\.000 s, want 9\.960 s"):
        check_clip(longer, EXPECTED)


def test_missing_streams_are_named(tmp_path: Path, clip: tuple[Path, Path]) -> None:
    with pytest.raises(MediaError, match="no sound"):
        check_clip(probe(clip[0]), EXPECTED)
    write_audio(tmp_path / "a.wav", tone(4410))
    sound = probe(tmp_path / "a.wav")
    assert sound.audio is not None
    assert sound.audio.duration_s == pytest.approx(0.1)
    with pytest.raises(MediaError, match="no picture"):
        check_clip(sound, EXPECTED)


def test_missing_foreign_and_truncated_files_are_refused(tmp_path: Path, delivered: Path) -> None:
    with pytest.raises(MediaError, match="no such media file"):
        probe(tmp_path / "absent.mp4")
    (tmp_path / "text.mp4").write_text("not a film")
    with pytest.raises(MediaError, match=r"text\.mp4: not readable"):
        probe(tmp_path / "text.mp4")
    content = delivered.read_bytes()
    (tmp_path / "cut.mp4").write_bytes(content[: len(content) // 2])
    with pytest.raises(MediaError):
        check_clip(probe(tmp_path / "cut.mp4"), EXPECTED)


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_poster_repeats_and_avoids_the_black_opening(tmp_path: Path, program: Ffmpeg, suffix: str) -> None:
    frames = moving_frames(30, 48, 64)
    frames[:20] = 0
    video = write_lossless(tmp_path / "v.mkv", frames, program=program)
    for name in ("a", "b"):
        write_poster(video, tmp_path / (name + suffix))
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    with Image.open(tmp_path / f"a{suffix}") as poster:
        assert poster.size == (64, 48)
        assert max(high for _, high in poster.getextrema()) > 200


@pytest.mark.parametrize(
    ("size", "small"),
    [((1920, 1080), (480, 270)), ((1088, 1920), (272, 480)), ((64, 32), (64, 32)), ((4000, 2), (480, 1))],
)
def test_thumbnail_is_a_small_webp_and_never_larger_than_its_poster(
    tmp_path: Path, size: tuple[int, int], small: tuple[int, int]
) -> None:
    Image.effect_noise(size, 60).convert("RGB").save(tmp_path / "poster.jpg")
    for name in ("a.webp", "b.webp"):
        write_thumbnail(tmp_path / "poster.jpg", tmp_path / name)
    with Image.open(tmp_path / "a.webp") as thumbnail:
        assert (thumbnail.format, thumbnail.size) == ("WEBP", small)
    assert (tmp_path / "a.webp").read_bytes() == (tmp_path / "b.webp").read_bytes()


def test_contact_sheet_shows_frames_in_reading_order(tmp_path: Path, program: Ffmpeg) -> None:
    frames = torch.arange(0, 160, 10, dtype=torch.uint8)[:, None, None, None].repeat(1, 8, 16, 3)
    video = write_lossless(tmp_path / "v.mkv", frames, program=program)
    for name in ("a.png", "b.png"):
        write_contact_sheet(video, tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with Image.open(tmp_path / "a.png") as sheet:
        assert sheet.size == (4 * 20 + 4, 4 * 12 + 4)
        cells = [sheet.getpixel((4 + 20 * (i % 4) + 8, 4 + 12 * (i // 4) + 4))[0] for i in range(16)]
    assert cells == list(range(0, 160, 10))


def test_a_clip_shorter_than_its_sheet_leaves_cells_empty(tmp_path: Path, program: Ffmpeg) -> None:
    video = write_lossless(tmp_path / "v.mkv", moving_frames(3, 8, 16), program=program)
    write_contact_sheet(video, tmp_path / "sheet.png", columns=2, rows=2)
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (44, 28)
        assert sheet.getpixel((32, 20)) == (0, 0, 0)


def test_large_frames_are_made_small_on_the_sheet_and_kept_on_the_poster(tmp_path: Path, program: Ffmpeg) -> None:
    video = write_lossless(tmp_path / "v.mkv", moving_frames(4, 360, 640), program=program)
    write_poster(video, tmp_path / "poster.jpg")
    write_contact_sheet(video, tmp_path / "sheet.jpg", columns=2, rows=2)
    assert Image.open(tmp_path / "poster.jpg").size == (640, 360)
    assert Image.open(tmp_path / "sheet.jpg").size == (2 * 324 + 4, 2 * 184 + 4)


def test_pictures_of_a_delivered_clip_are_made(tmp_path: Path, delivered: Path) -> None:
    write_poster(delivered, tmp_path / "poster.jpg")
    write_contact_sheet(delivered, tmp_path / "sheet.jpg")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["poster.jpg", "sheet.jpg"]


def test_pictures_that_cannot_be_made_are_refused(tmp_path: Path, delivered: Path) -> None:
    with pytest.raises(MediaError, match="ends in one of"):
        write_poster(delivered, tmp_path / "poster.tiff")
    with pytest.raises(MediaError, match="cannot write"):
        write_poster(delivered, tmp_path / "absent/poster.jpg")
    with pytest.raises(MediaError, match="at least one of each"):
        write_contact_sheet(delivered, tmp_path / "sheet.jpg", columns=0)
    (tmp_path / "text.mp4").write_text("not a film")
    with pytest.raises(MediaError, match="not readable"):
        write_contact_sheet(tmp_path / "text.mp4", tmp_path / "sheet.jpg")
