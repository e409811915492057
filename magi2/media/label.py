"""The label that people see in a clip: its text set as a small picture, which ffmpeg lays over every frame."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from magi2.errors import ConfigError
from magi2.media.delivery import LabelSpec, Overlay

DEBIAN_FONT = Path("/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc")
"""A font with Chinese, from Debian's package fonts-noto-cjk."""
FONT_HINT = "install fonts-noto-cjk, or set MAGI2_LABEL_FONT to a font file that has them"
LEGIBLE_PX = 12
"""Letters are no lower than this, however small the picture."""
LABEL_MARGIN = 0.02
"""Room around the label as a share of the picture's shorter side."""
_NO_CHARACTER = "\uffff"
"""Shown by every font as what stands for a glyph that it lacks."""
_TRIAL_PX = 200
_BOX = (0, 0, 0, 153)
_MAX_FACES = 100
_RIGHT_TO_LEFT = ("R", "AL", "AN")


@dataclass(frozen=True)
class _Setting:
    """A text at its size: the font, what its letters cover, and what the box around them measures, in pixels."""

    font: ImageFont.FreeTypeFont
    ink: tuple[int, int, int, int]
    outline: int
    padding: int
    width: int
    height: int


def find_font(setting: Path | None) -> Path:
    """The font file to set labels with. Raises: ConfigError when it is missing or no font."""
    path = setting or DEBIAN_FONT
    _open(path, _TRIAL_PX)
    return path


def check_label(label: LabelSpec, font: Path, size: tuple[int, int]) -> None:
    """Raises ConfigError when the font lacks a character of the label, or it has no room in a picture of this size."""
    face = _open(font, _TRIAL_PX)
    blank = _glyph(face, _NO_CHARACTER)
    missing = [char for char in label.text if not char.isspace() and _glyph(face, char) == blank]
    if missing:
        raise ConfigError(f"label {label.text!r}: {font.name} has no {', '.join(sorted(set(missing)))}", hint=FONT_HINT)
    joined = [char for char in label.text if _is_joined(char)]
    if joined:
        raise ConfigError(f"label {label.text!r}: letters are set one by one, which {joined[0]!r} does not allow")
    _place(label, _set(label, font, size), size)


def write_label(label: LabelSpec, font: Path, size: tuple[int, int], target: Path) -> Overlay:
    """Set the label for a picture of `size`, width and height, into `target`; where it goes comes back.

    White letters with a black outline in a dark box. Raises: ConfigError as `check_label` does.
    """
    setting = _set(label, font, size)
    x, y = _place(label, setting, size)
    image = Image.new("RGBA", (setting.width, setting.height), _BOX)
    inset = setting.padding + setting.outline
    ImageDraw.Draw(image).text(
        (inset - setting.ink[0], inset - setting.ink[1]),
        label.text,
        font=setting.font,
        fill="white",
        stroke_width=setting.outline,
        stroke_fill="black",
    )
    target.write_bytes(image.tobytes())
    return Overlay(target, setting.width, setting.height, x, y, label.seconds)


def _is_joined(char: str) -> bool:
    return unicodedata.bidirectional(char) in _RIGHT_TO_LEFT or unicodedata.category(char).startswith("M")


def _open(path: Path, pixels: int) -> ImageFont.FreeTypeFont:
    """The face for simplified Chinese of a collection that has one, else the first."""
    try:
        first = _face(path, pixels, 0)
    except OSError as error:
        raise ConfigError(f"label font {path}: not readable as a font ({error})", hint=FONT_HINT) from None
    for index in range(1, _MAX_FACES):
        try:
            face = _face(path, pixels, index)
        except OSError:
            break  # beyond the last one
        if (face.getname()[0] or "").endswith(" SC"):
            return face
    return first


def _face(path: Path, pixels: int, index: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(path, pixels, index=index, layout_engine=ImageFont.Layout.BASIC)


def _glyph(face: ImageFont.FreeTypeFont, char: str) -> tuple[tuple[int, int], bytes]:
    mask = face.getmask(char)
    return mask.size, bytes(mask)


def _set(label: LabelSpec, font: Path, size: tuple[int, int]) -> _Setting:
    """The label's text, its letters as high as they must be in a picture of `size` or a pixel higher."""
    height = max(ceil(label.size * min(size)), LEGIBLE_PX)
    trial = _open(font, _TRIAL_PX)
    pixels = max(1, height * _TRIAL_PX // _ink_height(trial, label.text))
    face = trial.font_variant(size=pixels)
    while _ink_height(face, label.text) < height:
        pixels += 1
        face = trial.font_variant(size=pixels)
    left, top, right, bottom = (round(edge) for edge in face.getbbox(label.text))
    outline, padding = max(1, height // 12), max(2, height // 3)
    room = 2 * (outline + padding)
    return _Setting(
        font=face,
        ink=(left, top, right, bottom),
        outline=outline,
        padding=padding,
        width=_even(right - left + room),
        height=_even(bottom - top + room),
    )


def _ink_height(face: ImageFont.FreeTypeFont, text: str) -> int:
    _, top, _, bottom = face.getbbox(text)
    return max(1, int(bottom - top))


def _place(label: LabelSpec, setting: _Setting, size: tuple[int, int]) -> tuple[int, int]:
    """The upper left corner of the label, at whole samples of colour. Raises: ConfigError when it has no room."""
    (width, height), margin = size, _even(ceil(LABEL_MARGIN * min(size)))
    if setting.width + 2 * margin > width or setting.height + 2 * margin > height:
        raise ConfigError(
            f"label {label.text!r} takes {setting.width}x{setting.height} pixels and a margin of {margin}, "
            f"the clip has {width}x{height}",
            hint="shorten delivery.label.text or lower delivery.label.size",
        )
    across, down = width - margin - setting.width, height - margin - setting.height
    vertical, _, horizontal = label.corner.partition("-")
    return (across if horizontal == "right" else margin), (down if vertical == "bottom" else margin)


def _even(value: int) -> int:
    """`value` or one more, since colour is stored at half size."""
    return value + value % 2
