"""The visible label: as high as it must be, where it must be, readable on anything, and refused where it cannot be."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
import torch
from PIL import Image, ImageFont

from magi2.config.labels import named_label
from magi2.errors import ConfigError
from magi2.media.audio import write_silence
from magi2.media.deliver import deliver
from magi2.media.delivery import Corner, DeliverySpec, LabelSpec, Overlay
from magi2.media.ffmpeg import Ffmpeg
from magi2.media.label import DEBIAN_FONT, LEGIBLE_PX, check_label, find_font, write_label
from magi2.media.reading import read_frames
from tests.media.media_clips import write_lossless

MADE = LabelSpec("Made by AI", seconds=0.2)
CN = LabelSpec(**named_label("cn"))
SIZES = [(1920, 1080), (1080, 1920), (896, 512), (256, 128), (128, 256), (1000, 1000)]
NEEDS_CHINESE = pytest.mark.programs(str(DEBIAN_FONT))


@pytest.fixture(scope="module")
def latin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A font without Chinese: the one that Pillow brings."""
    face = ImageFont.load_default(20)
    assert isinstance(face, ImageFont.FreeTypeFont)
    path = tmp_path_factory.mktemp("font") / "latin.ttf"
    path.write_bytes(face.font_bytes)
    return path


def letters(overlay: Overlay) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of what is white in a label's picture."""
    image = Image.frombytes("RGBA", (overlay.width, overlay.height), overlay.path.read_bytes())
    found = image.getchannel("R").point(lambda level: 255 * (level > 127)).getbbox()
    assert found is not None
    return found


@pytest.mark.parametrize(("size", "corner"), list(product(SIZES, get_args(Corner))))
def test_letters_are_as_high_as_asked_and_the_label_lies_in_its_corner(
    size: tuple[int, int], corner: Corner, latin: Path, tmp_path: Path
) -> None:
    overlay = write_label(dataclasses.replace(MADE, corner=corner), latin, size, tmp_path / "label.rgba")
    _, top, _, bottom = letters(overlay)
    wanted = max(0.05 * min(size), LEGIBLE_PX)
    assert wanted - 1 <= bottom - top <= wanted + 3  # the edges of a letter may be grey
    left, above = overlay.x, overlay.y
    right, below = size[0] - overlay.x - overlay.width, size[1] - overlay.y - overlay.height
    assert min(left, above, right, below) >= 0.02 * min(size)
    assert (above < below, left < right) == (corner.startswith("top"), corner.endswith("left"))
    assert not any(value % 2 for value in (overlay.x, overlay.y, overlay.width, overlay.height))


@NEEDS_CHINESE
@pytest.mark.parametrize("size", SIZES)
def test_the_label_for_china_has_the_height_that_its_source_names(size: tuple[int, int], tmp_path: Path) -> None:
    overlay = write_label(CN, find_font(None), size, tmp_path / "label.rgba")
    _, top, _, bottom = letters(overlay)
    assert bottom - top >= 0.05 * min(size) - 1
    assert (CN.text, CN.seconds) == ("AI生成", 2)


def background(name: str, width: int, height: int) -> torch.Tensor:
    noise = torch.randint(0, 256, (12, height, width, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return {"white": torch.full_like(noise, 255), "black": torch.zeros_like(noise), "noise": noise}[name]


@pytest.mark.parametrize(
    ("ground", "change"),
    [
        ("noise", {}),
        ("black", {"size": (144, 80)}),
        ("white", {"size": (288, 160), "fit": "scale"}),
        ("white", {"size": (320, 192), "fit": "nearest"}),
        ("noise", {"size": (120, 200), "fit": "scale"}),
    ],
)
def test_a_label_is_burned_in_at_every_size_for_its_time_and_no_longer(
    ground: str, change: dict[str, object], latin: Path, tmp_path: Path, program: Ffmpeg
) -> None:
    spec = DeliverySpec(preset="ultrafast", threads=1, crf=10, **change)  # type: ignore[arg-type]
    picture = write_lossless(tmp_path / "in.mkv", background(ground, 160, 96), program=program)
    write_silence(tmp_path / "in.wav", 21_168)
    overlay = write_label(MADE, latin, spec.size or (160, 96), tmp_path / "label.rgba")
    clips = []
    for name, label in (("plain", None), ("first", overlay), ("second", overlay)):
        target, given = tmp_path / f"{name}.mp4", {"fps": Fraction(25), "frame_count": 12, "metadata": {}}
        deliver(picture, tmp_path / "in.wav", target, spec, **given, ffmpeg=program, label=label)  # type: ignore[arg-type]
        clips.append(target)
    plain, labelled, again = clips
    assert labelled.read_bytes() == again.read_bytes()
    shown, hidden = (list(read_frames(clip)) for clip in (labelled, plain))
    for frame, unlabelled in zip(shown[:5], hidden[:5], strict=True):  # a fifth of a second at 25 frames a second
        area = patch(frame, overlay).float().mean(-1)
        assert area.max() > 200 and area.min() < 40 and (patch(unlabelled, overlay) - patch(frame, overlay)).any()
    rest = torch.stack(shown[5:]).int() - torch.stack(hidden[5:]).int()
    assert rest.abs().float().mean() < 2, "the encoder's own noise and no letters"


def patch(frame: torch.Tensor, overlay: Overlay) -> torch.Tensor:
    return frame[overlay.y : overlay.y + overlay.height, overlay.x : overlay.x + overlay.width]


def test_a_label_for_all_of_the_clip_is_in_its_last_frame(latin: Path, tmp_path: Path, program: Ffmpeg) -> None:
    picture = write_lossless(tmp_path / "in.mkv", background("black", 160, 96), program=program)
    write_silence(tmp_path / "in.wav", 44_100)
    overlay = write_label(dataclasses.replace(MADE, seconds=None), latin, (160, 96), tmp_path / "label.rgba")
    spec, target = DeliverySpec(preset="ultrafast", pad_last_frame=True), tmp_path / "a.mp4"
    times = {"fps": Fraction(25), "frame_count": 12}
    deliver(picture, tmp_path / "in.wav", target, spec, **times, metadata={}, ffmpeg=program, label=overlay)
    frames = list(read_frames(target))
    assert len(frames) == 25 and patch(frames[-1], overlay).max() > 200


@pytest.mark.parametrize("text", ["AI生成", "AI \U0001f916", "AI ☃☃"])
def test_a_character_that_the_font_lacks_is_named(text: str, latin: Path) -> None:
    with pytest.raises(ConfigError, match=rf"latin\.ttf has no {sorted(set(text) - set('AI '))[0]}.*fonts-noto-cjk"):
        check_label(LabelSpec(text), latin, (1920, 1080))


@NEEDS_CHINESE
def test_letters_that_join_are_refused() -> None:
    check_label(LabelSpec("人工智能生成 / AI generated / Сделано ИИ"), find_font(None), (1920, 1080))
    for text in ("صنع", "e\u0301"):
        with pytest.raises(ConfigError, match="label"):
            check_label(LabelSpec(text), find_font(None), (1920, 1080))


@pytest.mark.parametrize("size", [(64, 64), (200, 200), (40, 1920)])
def test_a_label_without_room_is_refused_with_the_sizes(size: tuple[int, int], latin: Path) -> None:
    with pytest.raises(ConfigError, match=rf"takes \d+x\d+ pixels.*the clip has {size[0]}x{size[1]}"):
        check_label(LabelSpec("Made by a machine", size=0.5), latin, size)


def test_a_font_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "no.ttf").write_bytes(b"no font")
    for name in ("absent.ttf", "no.ttf"):
        with pytest.raises(ConfigError, match=rf"{name}.*MAGI2_LABEL_FONT"):
            find_font(tmp_path / name)


@pytest.mark.parametrize(
    "change",
    [
        {"text": ""},
        {"text": "  "},
        {"text": "two\nlines"},
        {"text": "x" * 101},
        {"corner": "middle"},
        {"size": 0.0},
        {"size": 0.6},
        {"size": float("nan")},
        {"seconds": 0.0},
        {"seconds": -1.0},
        {"seconds": float("inf")},
    ],
)
def test_labels_out_of_range_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="label"):
        LabelSpec(**{"text": "AI", **change})  # type: ignore[arg-type]
