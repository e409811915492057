"""The delivered mp4: exact length, size, colour and bytes; hostile metadata; failures that leave nothing."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from magi2.errors import ConfigError, InputError, MediaError, MissingToolError
from magi2.media.audio import write_audio
from magi2.media.deliver import deliver
from magi2.media.delivery import DeliverySpec, delivered_frame_count, fitted_size
from magi2.media.ffmpeg import Ffmpeg
from magi2.media.probe import ExpectedClip, check_clip, probe
from magi2.media.reading import open_media, read_frames
from tests.media.media_clips import moving_frames, tone, write_lossless

FAST = DeliverySpec(preset="ultrafast", threads=2)
FPS = Fraction(25)


def send(clip: tuple[Path, Path], target: Path, spec: DeliverySpec, program: Ffmpeg, **changes: object) -> Path:
    arguments = {"fps": FPS, "frame_count": 249, "metadata": {}, "ffmpeg": program} | changes
    deliver(*clip, target, spec, **arguments)  # type: ignore[arg-type]
    return target


def small_clip(folder: Path, program: Ffmpeg, frames: torch.Tensor, *, samples: int, fps: Fraction = FPS) -> tuple:
    video = write_lossless(folder / "in.mkv", frames, program=program, fps=fps)
    write_audio(folder / "in.wav", tone(samples))
    return video, folder / "in.wav"


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
def test_every_codec_gives_the_planned_clip_with_equal_bytes(
    tmp_path: Path, program: Ffmpeg, clip: tuple[Path, Path], codec: str
) -> None:
    spec = dataclasses.replace(FAST, codec=codec)
    first, second = (send(clip, tmp_path / name, spec, program) for name in ("a.mp4", "b.mp4"))
    expected = ExpectedClip(codec=codec, width=96, height=64, frame_count=249, fps=FPS)
    found = probe(first)
    check_clip(found, expected)
    assert found.audio is not None
    assert found.audio.duration_s == pytest.approx(9.96, abs=0.001)
    assert first.read_bytes() == second.read_bytes()
    content = first.read_bytes()
    assert content.index(b"moov") < content.index(b"mdat")


def test_held_last_frame_makes_ten_seconds(tmp_path: Path, program: Ffmpeg, clip: tuple[Path, Path]) -> None:
    spec = dataclasses.replace(FAST, pad_last_frame=True, crf=1)
    found = probe(send(clip, tmp_path / "a.mp4", spec, program))
    check_clip(found, ExpectedClip(codec="h264", width=96, height=64, frame_count=250, fps=FPS))
    assert found.video is not None
    assert found.audio is not None
    assert (found.video.duration_s, found.audio.duration_s) == (10.0, 10.0)
    *_, before, last = read_frames(tmp_path / "a.mp4")
    assert (before.int() - last.int()).abs().float().mean() < 1.0


def test_length_rule_follows_the_sound(golden: Path) -> None:
    padded = DeliverySpec(pad_last_frame=True)
    for seconds, counts in json.loads((golden / "output/lengths.json").read_text()).items():
        refined, sound = counts["refiner_frames"], counts["audio_samples_written"]
        arguments = {"frame_count": refined, "fps": FPS, "sample_count": sound}
        assert delivered_frame_count(DeliverySpec(), **arguments) == refined
        assert delivered_frame_count(padded, **arguments) == round(25 * float(seconds))
    assert delivered_frame_count(padded, frame_count=125, fps=Fraction(25, 2), sample_count=441_000) == 125
    assert delivered_frame_count(padded, frame_count=13, fps=Fraction(25, 2), sample_count=44_100) == 13


def test_preview_rate_lasts_twice_as_long_and_short_sound_is_filled_up(tmp_path: Path, program: Ffmpeg) -> None:
    fps = Fraction(25, 2)
    clip = small_clip(tmp_path, program, moving_frames(13, 32, 48), samples=44_100, fps=fps)
    target = send(clip, tmp_path / "a.mp4", FAST, program, fps=fps, frame_count=13)
    found = probe(target)
    check_clip(found, ExpectedClip(codec="h264", width=48, height=32, frame_count=13, fps=fps))
    assert found.audio is not None
    assert found.audio.duration_s == pytest.approx(1.04, abs=0.001)


def test_properties_that_upstream_observed_are_kept_and_the_differences_are_known(
    golden: Path, tmp_path: Path, program: Ffmpeg, clip: tuple[Path, Path]
) -> None:
    observed = json.loads((golden / "output/ffmpeg_observed.json").read_text())
    video, audio = (stream for stream in observed["mux"]["probe"])
    picture = observed["1088x1920"]["probe"][0]
    found = probe(send(clip, tmp_path / "a.mp4", FAST, program))
    assert found.video is not None
    assert found.audio is not None
    assert (found.video.codec, found.video.pix_fmt) == (picture["codec_name"], picture["pix_fmt"])
    assert found.video.fps == Fraction(picture["r_frame_rate"])
    assert found.audio.codec == audio["codec_name"]
    assert (found.audio.sample_rate_hz, found.audio.channels) == (int(audio["sample_rate"]), audio["channels"])
    # Upstream's streams differ in length (0.12 s and 0.10 s here, 9.96 s and 10.00 s for a clip); ours do not.
    assert video["duration"] != audio["duration"]
    assert found.video.duration_s == pytest.approx(found.audio.duration_s, abs=0.001)
    # Upstream turns 1080 lines into 1088 and leaves colours untagged.
    assert observed["1080x1920"]["probe"][0]["height"] == 1088
    assert found.video.color_space == "bt709"


def test_crop_to_1080_lines_cuts_four_rows_at_top_and_bottom(tmp_path: Path, program: Ffmpeg) -> None:
    frames = torch.full((3, 1088, 64, 3), 128, dtype=torch.uint8)
    frames[:, :4], frames[:, -4:] = 255, 255
    clip = small_clip(tmp_path, program, frames, samples=5292)
    spec = dataclasses.replace(FAST, size=(64, 1080), crf=1)
    target = send(clip, tmp_path / "a.mp4", spec, program, frame_count=3)
    check_clip(probe(target), ExpectedClip(codec="h264", width=64, height=1080, frame_count=3, fps=FPS))
    assert max(int((frame.int() - 128).abs().max()) for frame in read_frames(target)) <= 3


def test_scale_keeps_the_whole_picture(tmp_path: Path, program: Ffmpeg) -> None:
    frames = torch.full((3, 1088, 64, 3), 0, dtype=torch.uint8)
    frames[:, :544] = 255
    clip = small_clip(tmp_path, program, frames, samples=5292)
    spec = dataclasses.replace(FAST, size=(32, 1080), fit="scale")
    target = send(clip, tmp_path / "a.mp4", spec, program, frame_count=3)
    check_clip(probe(target), ExpectedClip(codec="h264", width=32, height=1080, frame_count=3, fps=FPS))
    share = next(read_frames(target)).float().mean().item() / 255
    assert share == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("factor", [2, 3, 8])
def test_nearest_makes_every_pixel_a_block_of_one_level(tmp_path: Path, program: Ffmpeg, factor: int) -> None:
    frames = torch.randint(0, 256, (2, 16, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    clip = small_clip(tmp_path, program, frames, samples=3528)
    spec = dataclasses.replace(FAST, size=(32 * factor, 16 * factor), fit="nearest", crf=0)  # x264's 0 is lossless
    target = send(clip, tmp_path / "a.mp4", spec, program, frame_count=2)
    native = 16 + 219 / 255 * frames.float() @ torch.tensor([0.2126, 0.7152, 0.0722])  # BT.709, limited range
    for pixels, (luma, *colours) in zip(native, planes(target), strict=True):
        assert torch.equal(luma, blocks(luma[::factor, ::factor], factor))
        assert (luma[::factor, ::factor].float() - pixels).abs().max() <= 1.0
        if factor % 2 == 0:  # at odd factors a sample of half-size colour may belong to two pixels
            assert all(
                torch.equal(plane, blocks(plane[:: factor // 2, :: factor // 2], factor // 2)) for plane in colours
            )


def planes(video: Path) -> Iterator[list[torch.Tensor]]:
    """Luma and the two half-size colours of each frame, as stored."""
    with open_media(video) as container:
        for frame in container.decode(video=0):
            luma, colours = torch.from_numpy(frame.to_ndarray()).split([frame.height, frame.height // 2])
            yield [luma, *colours.reshape(2, frame.height // 2, frame.width // 2)]


def blocks(plane: torch.Tensor, factor: int) -> torch.Tensor:
    return plane.repeat_interleave(factor, dim=0).repeat_interleave(factor, dim=1)


def test_scale_blends_where_nearest_repeats(tmp_path: Path, program: Ffmpeg) -> None:
    frames = torch.zeros(2, 16, 32, 3, dtype=torch.uint8)
    frames[:, :, 16:] = 255
    clip = small_clip(tmp_path, program, frames, samples=3528)
    levels = {}
    for fit in ("scale", "nearest"):
        spec = dataclasses.replace(FAST, size=(256, 128), fit=fit, crf=0)
        target = send(clip, tmp_path / f"{fit}.mp4", spec, program, frame_count=2)
        levels[fit] = set(next(planes(target))[0].unique().tolist())
    assert levels["nearest"] == {16, 235} < levels["scale"]


def framed(height: int, width: int) -> torch.Tensor:
    """Two grey frames with a white column at the left and the right, and a white row above and below, two pixels."""
    frames = torch.full((2, height, width, 3), 128, dtype=torch.uint8)
    for edge in (frames[:, :2], frames[:, -2:], frames[:, :, :2], frames[:, :, -2:]):
        edge[:] = 255
    return frames


@pytest.mark.parametrize(
    ("native", "size"),
    [
        ((128, 64), (128, 128)),
        ((64, 128), (256, 128)),
        ((128, 64), (64, 128)),
        ((128, 64), (130, 66)),
        ((64, 64), (90, 64)),
    ],
)
def test_contain_shows_the_whole_picture_between_equal_black_bars(
    tmp_path: Path, program: Ffmpeg, native: tuple[int, int], size: tuple[int, int]
) -> None:
    clip = small_clip(tmp_path, program, framed(native[1], native[0]), samples=3528)
    spec = dataclasses.replace(FAST, size=size, fit="contain", crf=0)
    target = send(clip, tmp_path / "a.mp4", spec, program, frame_count=2)
    check_clip(probe(target), ExpectedClip(codec="h264", width=size[0], height=size[1], frame_count=2, fps=FPS))
    width, height = fitted_size(native, size, "contain")
    across, down = (size[0] - width) // 2, (size[1] - height) // 2
    luma, *colours = next(planes(target))
    inside = torch.zeros_like(luma, dtype=torch.bool)
    inside[down : down + height, across : across + width] = True
    assert luma[~inside].eq(16).all()
    assert all(plane[~inside[::2, ::2]].eq(128).all() for plane in colours)
    shown = luma[down : down + height, across : across + width]
    assert min(edge.float().mean() for edge in (shown[0], shown[-1], shown[:, 0], shown[:, -1])) > 200
    assert abs(width * native[1] - height * native[0]) <= 2 * max(native)  # the aspect, to two pixels


@pytest.mark.parametrize(
    ("native", "size"), [((128, 64), (64, 64)), ((64, 128), (256, 128)), ((128, 64), (90, 160)), ((64, 64), (62, 64))]
)
def test_cover_fills_the_picture_and_cuts_equal_margins(
    tmp_path: Path, program: Ffmpeg, native: tuple[int, int], size: tuple[int, int]
) -> None:
    frames = torch.full((2, native[1], native[0], 3), 128, dtype=torch.uint8)
    frames[:, native[1] // 2 - 4 : native[1] // 2 + 4, native[0] // 2 - 4 : native[0] // 2 + 4] = 255
    clip = small_clip(tmp_path, program, frames, samples=3528)
    spec = dataclasses.replace(FAST, size=size, fit="cover", crf=0)
    target = send(clip, tmp_path / "a.mp4", spec, program, frame_count=2)
    check_clip(probe(target), ExpectedClip(codec="h264", width=size[0], height=size[1], frame_count=2, fps=FPS))
    luma = next(planes(target))[0]
    rows, columns = (luma > 180).nonzero().float().unbind(1)
    assert luma.min() > 100  # nothing but the picture
    assert abs(rows.mean() - (size[1] - 1) / 2) < 0.6 and abs(columns.mean() - (size[0] - 1) / 2) < 0.6
    assert (rows.max() - rows.min()) == pytest.approx(columns.max() - columns.min(), abs=2)  # a square is one still


@pytest.mark.parametrize("fit", ["cover", "contain"])
def test_fits_of_the_native_size_change_no_byte(tmp_path: Path, program: Ffmpeg, fit: str) -> None:
    clip = small_clip(tmp_path, program, moving_frames(2, 32, 64), samples=3528)
    plain = send(clip, tmp_path / "a.mp4", FAST, program, frame_count=2)
    fitted = dataclasses.replace(FAST, size=(64, 32), fit=fit)
    assert send(clip, tmp_path / "b.mp4", fitted, program, frame_count=2).read_bytes() == plain.read_bytes()


@pytest.mark.parametrize("native", [(1920, 1088), (1088, 1920), (16, 4096), (4096, 16), (2, 2)])
@pytest.mark.parametrize("size", [(1920, 1080), (1080, 1920), (2, 2), (4, 4), (8192, 2), (2, 8192), (1366, 768)])
def test_fitted_sides_are_even_and_leave_even_margins_on_the_right_side(
    native: tuple[int, int], size: tuple[int, int]
) -> None:
    for fit, sign in (("cover", 1), ("contain", -1)):
        resized = fitted_size(native, size, fit)  # type: ignore[arg-type]
        margins = [sign * (side - wanted) for side, wanted in zip(resized, size, strict=True)]
        assert 0 in margins and all(margin >= 0 and margin % 4 == 0 for margin in margins)
        assert all(side >= 2 and side % 2 == 0 for side in resized)


@pytest.mark.parametrize("color", [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (12, 34, 200), (0, 0, 0)])
def test_colours_survive_the_bt709_conversion(tmp_path: Path, program: Ffmpeg, color: tuple[int, int, int]) -> None:
    frames = torch.tensor(color, dtype=torch.uint8).expand(2, 32, 32, 3).contiguous()
    clip = small_clip(tmp_path, program, frames, samples=3528)
    target = send(clip, tmp_path / "a.mp4", dataclasses.replace(FAST, crf=1), program, frame_count=2)
    shown = next(read_frames(target))[16, 16]
    assert (shown.int() - torch.tensor(color).int()).abs().max() <= 3


def test_sound_keeps_its_channels_level_and_pitch(tmp_path: Path, program: Ffmpeg, clip: tuple[Path, Path]) -> None:
    import av

    target = send(clip, tmp_path / "a.mp4", FAST, program)
    with av.open(str(target)) as container:
        decoded = torch.cat([torch.from_numpy(frame.to_ndarray()) for frame in container.decode(audio=0)], dim=1)
    heard, sent = decoded[:, 44_100:88_200], tone(441_000)[:, 44_100:88_200]
    assert (heard - sent).abs().max() < 0.02


def test_samples_beyond_full_scale_are_clipped_once(tmp_path: Path, program: Ffmpeg) -> None:
    import av

    video, audio = small_clip(tmp_path, program, moving_frames(25, 32, 32), samples=44_100)
    write_audio(audio, tone(44_100, frequency=50.0) * 20)
    target = send((video, audio), tmp_path / "a.mp4", FAST, program, frame_count=25)
    with av.open(str(target)) as container:
        decoded = torch.cat([torch.from_numpy(frame.to_ndarray()) for frame in container.decode(audio=0)], dim=1)
    assert 0.9 < decoded.abs().max() < 1.3


def test_hostile_metadata_is_only_text(tmp_path: Path, program: Ffmpeg, clip: tuple[Path, Path]) -> None:
    hostile = "a \"b\" 'c'; $(touch pwned) `x` | & > < \\ %s -y =\nsecond line \u202e Ünï \U0001f468\u200d\U0001f469"
    metadata = {"comment": hostile + "\x00\x1b[2J\x07", "magi2.seed": "9007199254740991", "title": "-i /etc/passwd"}
    target = send(clip, tmp_path / "a.mp4", FAST, program, metadata=metadata)
    stored = probe(target).metadata
    assert stored["comment"] == hostile + "[2J"
    assert stored["magi2.seed"] == "9007199254740991"
    assert stored["title"] == "-i /etc/passwd"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4"]
    assert not Path("pwned").exists()


def test_hostile_file_names_are_only_names(tmp_path: Path, program: Ffmpeg, clip: tuple[Path, Path]) -> None:
    folder = tmp_path / "it's; [odd], $(name) %03d:x=y"
    folder.mkdir()
    target = send(clip, folder / "-i.mp4", FAST, program)
    assert probe(target).video is not None


def test_unpaired_surrogates_do_not_stop_a_delivery(tmp_path: Path, program: Ffmpeg, clip: tuple[Path, Path]) -> None:
    target = send(clip, tmp_path / "a.mp4", FAST, program, metadata={"title": "x\ud800y"})
    assert probe(target).metadata["title"] == "x?y"


@pytest.mark.parametrize("metadata", [{"a=b": "c"}, {"": "c"}, {"a b": "c"}, {"prompt": "x" * 100_001}])
def test_metadata_that_cannot_be_stored_is_refused(
    tmp_path: Path, program: Ffmpeg, clip: tuple[Path, Path], metadata: dict[str, str]
) -> None:
    with pytest.raises(InputError, match="metadata"):
        send(clip, tmp_path / "a.mp4", FAST, program, metadata=metadata)


def test_sizes_that_cannot_be_reached_are_refused(tmp_path: Path, program: Ffmpeg, clip: tuple[Path, Path]) -> None:
    with pytest.raises(InputError, match="97x63: both sides must be even"):
        DeliverySpec(size=(97, 63))
    with pytest.raises(InputError, match="cannot be cropped from 96x64"):
        send(clip, tmp_path / "a.mp4", dataclasses.replace(FAST, size=(96, 66)), program)
    odd = small_clip(tmp_path, program, moving_frames(2, 33, 47), samples=3528)
    with pytest.raises(InputError, match="47x33"):
        send(odd, tmp_path / "a.mp4", FAST, program, frame_count=2)
    cropped = send(odd, tmp_path / "b.mp4", dataclasses.replace(FAST, size=(46, 32)), program, frame_count=2)
    check_clip(probe(cropped), ExpectedClip(codec="h264", width=46, height=32, frame_count=2, fps=FPS))


@pytest.mark.parametrize("change", [{"codec": "vp9"}, {"crf": 52}, {"crf": -1}, {"preset": "7"}])
def test_settings_out_of_range_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="delivery"):
        DeliverySpec(**change)  # type: ignore[arg-type]


def test_missing_encoder_names_those_at_hand(tmp_path: Path, program: Ffmpeg, clip: tuple[Path, Path]) -> None:
    poor = Ffmpeg(program.path, program.version, frozenset({"libx264", "aac"}))
    with pytest.raises(MissingToolError, match="no encoder libsvtav1, available: libx264"):
        send(clip, tmp_path / "a.mp4", DeliverySpec(codec="av1"), poor)


def test_failures_leave_no_file_and_keep_the_earlier_one(
    tmp_path: Path, program: Ffmpeg, clip: tuple[Path, Path], fake_program: Callable[[str], str]
) -> None:
    (tmp_path / "out").mkdir()
    target = tmp_path / "out/a.mp4"
    target.write_bytes(b"earlier")
    body = 'for last; do :; done; echo half > "${last#file:}"; echo disk fell off >&2; exit 1'
    failing = Ffmpeg(fake_program(body), "0", program.encoders)
    with pytest.raises(MediaError, match="disk fell off"):
        send(clip, target, FAST, failing)
    assert os.listdir(tmp_path / "out") == ["a.mp4"]
    assert target.read_bytes() == b"earlier"


def test_unwritable_target_and_absent_inputs_are_named(
    tmp_path: Path, program: Ffmpeg, clip: tuple[Path, Path]
) -> None:
    with pytest.raises(MediaError, match="cannot write"):
        send(clip, tmp_path / "absent/a.mp4", FAST, program)
    with pytest.raises(MediaError, match="no such media file"):
        send((tmp_path / "no.mkv", clip[1]), tmp_path / "a.mp4", FAST, program)
    with pytest.raises(MediaError, match=r"no\.wav"):
        send((clip[0], tmp_path / "no.wav"), tmp_path / "a.mp4", FAST, program)


def test_fewer_frames_than_planned_are_noticed(tmp_path: Path, program: Ffmpeg, clip: tuple[Path, Path]) -> None:
    found = probe(send(clip, tmp_path / "a.mp4", FAST, program, frame_count=240))
    with pytest.raises(MediaError, match="frames 249, want 240"):
        check_clip(found, ExpectedClip(codec="h264", width=96, height=64, frame_count=240, fps=FPS))
