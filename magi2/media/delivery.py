"""How a clip is delivered: codec, size, length, place. Torch-free, since recipes carry what decides the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import gcd, inf
from pathlib import Path
from typing import Any, Literal, get_args

from magi2.errors import ConfigError, InputError

SAMPLE_RATE_HZ = 44_100
METADATA_LIMIT_BYTES = 100_000
"""Of one entry, its key included: a single argument of a program may hold 128 KiB on Linux."""
BESIDE_ENCODING = ("provenance", "label", "watermark")
"""Fields of a DeliverySpec that are not settings of the encoder."""
Codec = Literal["h264", "hevc", "av1"]
Fit = Literal["crop", "scale", "nearest", "cover", "contain"]
Provenance = Literal["full", "ids", "none"]
Corner = Literal["top-left", "top-right", "bottom-left", "bottom-right"]

ENCODERS: Mapping[Codec, str] = {"h264": "libx264", "hevc": "libx265", "av1": "libsvtav1"}
HIGHEST_CRF: Mapping[Codec, int] = {"h264": 51, "hevc": 51, "av1": 63}
AV1_PRESETS: Mapping[str, int] = {
    "ultrafast": 12,
    "superfast": 11,
    "veryfast": 10,
    "faster": 9,
    "fast": 8,
    "medium": 7,
    "slow": 5,
    "slower": 3,
    "veryslow": 2,
}
"""The other encoders' names of speed, as SVT-AV1 counts them."""
PLACEMENT = ("target", "name", "sidecar")
"""What says where a file goes, and nothing of what it is: no key and no clip's id depends on it."""
CONSENT = "stretch"
"""The field that allows what `fit` and `size` say, and changes no bit of it."""
SMALLEST_SIDES: Mapping[Codec, int] = {"h264": 2, "hevc": 64, "av1": 2}
"""Pixels. x265 takes smaller pictures at some settings and ends without a word at others."""
LARGEST_SIDE = 8192
UNSEEN_STRETCH = 0.02
"""Sides are multiples of 16 where clips are made: 896x512 stands for 16:9 and is off by 1.6 %."""

MAX_LABEL_CHARS = 100
LARGEST_LABEL = 0.5


@dataclass(frozen=True)
class LabelSpec:
    """A text that is burned into the picture. `size` is the height of its letters as a share of the shorter side; it is
    shown for the first `seconds`, None for all of the clip.
    """

    text: str
    corner: Corner = "top-left"
    size: float = 0.05
    seconds: float | None = None

    def __post_init__(self) -> None:
        if not self.text.strip() or not self.text.isprintable() or len(self.text) > MAX_LABEL_CHARS:
            raise ConfigError(f"label text must be one line of 1 to {MAX_LABEL_CHARS} characters that can be seen")
        if self.corner not in get_args(Corner):
            raise ConfigError(f"label corner {self.corner!r}, known are {', '.join(get_args(Corner))}")
        if not 0 < self.size <= LARGEST_LABEL:
            raise ConfigError(f"label size {self.size}, must be above 0 and at most {LARGEST_LABEL}")
        if self.seconds is not None and not 0 < self.seconds < inf:
            raise ConfigError(f"label seconds {self.seconds}, must be above 0, or null for all of the clip")


@dataclass(frozen=True)
class Overlay:
    """A picture to lay over a clip: `width` x `height` pixels of RGBA as they are in the file at `path`, with its upper
    left corner at `x`, `y` of the delivered picture, for the first `seconds` or, if None, all of the clip.
    """

    path: Path
    width: int
    height: int
    x: int
    y: int
    seconds: float | None = None


@dataclass(frozen=True)
class DeliverySpec:
    """How a clip is delivered. `size` is (width, height), None the native one; `fit` says how it is reached:
    "crop" cuts equal margins, "scale" resizes once by Lanczos, "nearest" by repeating or dropping pixels; "cover"
    resizes by Lanczos until all is filled and cuts equal margins, "contain" until all is seen, between black bars.
    `stretch` allows "scale" and "nearest" to give the picture another aspect.
    `preset` is one of x264's names for every codec. `pad_last_frame` holds the last frame until the sound ends.
    `threads` is part of the result: bytes depend on it. `provenance` says what the file tells of its making: "ids"
    keys, profile and seed, "full" prompt, caption and settings, too. `label` is burned into the picture, `watermark`
    names what every frame passes through before that.
    `target` and `name` say where the file is brought, see `magi2.delivery`: a configured target, and a template of the
    path below it. A "full" `sidecar` beside it also tells device, host and cost.
    """

    codec: Codec = "h264"
    crf: int = 16
    preset: str = "medium"
    size: tuple[int, int] | None = None
    fit: Fit = "crop"
    stretch: bool = False
    pad_last_frame: bool = False
    audio_bitrate_kbps: int = 192
    threads: int = 4
    provenance: Provenance = "ids"
    label: LabelSpec | None = None
    watermark: str | None = None
    target: str | None = None
    name: str | None = None
    sidecar: Literal["standard", "full"] = "standard"

    def __post_init__(self) -> None:
        if self.codec not in ENCODERS:
            raise ConfigError(f"delivery codec {self.codec!r}, known are {', '.join(ENCODERS)}")
        if not 0 <= self.crf <= HIGHEST_CRF[self.codec]:
            raise ConfigError(f"delivery crf {self.crf}, {self.codec} takes 0 to {HIGHEST_CRF[self.codec]}")
        if self.preset not in AV1_PRESETS:
            raise ConfigError(f"delivery preset {self.preset!r}, known are {', '.join(AV1_PRESETS)}")
        if self.size is not None:
            check_even(*self.size)

    def encoding(self) -> dict[str, Any]:
        """The fields that shape picture and sound, as plain values."""
        beside = (*BESIDE_ENCODING, *PLACEMENT, CONSENT)
        return {name: value for name, value in asdict(self).items() if name not in beside}

    @property
    def encoder(self) -> str:
        """ffmpeg's name of the encoder."""
        return ENCODERS[self.codec]


def delivered_frame_count(spec: DeliverySpec, *, frame_count: int, fps: Fraction, sample_count: int) -> int:
    """Frames of the delivered file, made from `frame_count` native ones and `sample_count` samples at 44.1 kHz.

    249 frames at 25 fps with ten seconds of sound stay 249 (9.96 s), or become 250 with `pad_last_frame`.
    """
    if not spec.pad_last_frame:
        return frame_count
    return max(frame_count, sample_count * fps // SAMPLE_RATE_HZ)


def fitted_size(native: tuple[int, int], wanted: tuple[int, int], fit: Fit) -> tuple[int, int]:
    """Width and height of the resized picture before "cover" cuts it, or "contain" adds bars, to reach `wanted`.

    One side is the wanted one. The other keeps the aspect to two pixels: it differs from the wanted one by a multiple
    of four, so that both margins are equal and even, as colour at half size wants them. Other fits resize to `wanted`.
    """
    if fit not in ("cover", "contain"):
        return wanted
    factors = [side / own for side, own in zip(wanted, native, strict=True)]
    factor = max(factors) if fit == "cover" else min(factors)
    width, height = (
        max(side + 4 * round((own * factor - side) / 4), 4 - side % 4) for side, own in zip(wanted, native, strict=True)
    )
    return width, height


def stretched(native: tuple[int, int], wanted: tuple[int, int]) -> bool:
    """Whether people see that a picture of one size was brought to the other by resizing it alone."""
    ratio = wanted[0] * native[1] / (wanted[1] * native[0])
    return max(ratio, 1 / ratio) > 1 + UNSEEN_STRETCH


def with_aspect(size: tuple[int, int]) -> str:
    """A size for people, such as "1024x512 (2:1)"."""
    width, height = size
    divisor = gcd(width, height)
    return f"{width}x{height} ({width // divisor}:{height // divisor})"


def check_even(width: int, height: int) -> None:
    """Raises InputError when a side is odd or too small for 4:2:0 colour."""
    if width < 2 or height < 2 or width % 2 or height % 2:
        raise InputError(f"delivery {width}x{height}: both sides must be even, colour is stored at half size")
