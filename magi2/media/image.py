"""Reference images: reading what users give, and preparing it exactly as the preview model was trained to see it."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from PIL import Image, ImageOps, ImageStat, UnidentifiedImageError

from magi2.errors import ImageError, InfrastructureError
from magi2.files import is_the_machines
from magi2.media.colours import RGB, Treatment, in_plain_mode, in_srgb, on_background, transparency
from magi2.media.damage import DamageError
from magi2.media.integrity import check_integrity
from magi2.media.other_files import RAW, kind_of

if TYPE_CHECKING:
    from torch import Tensor

MAX_PIXELS = 2**26
"""8192 x 8192: the largest image that is decoded, 200 MB of RGB."""
SIDE_MULTIPLE = 32
"""Latents are 16 times smaller than pixels and are read in patches of 2."""
SQUARE_SIDE = 320

Mode = Literal["original", "square"]

FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What is decoded. Pillow knows more, some of which it hands to other programs."""
TAKEN = f"pictures are {', '.join(FORMATS)}"
MAX_ENLARGEMENT = 8
"""A reference whose sides are fewer pixels than a clip's by more than this shows the model nothing but its blur."""
MIN_SPREAD = 4.0
"""Levels by which the pixels of a picture that shows something spread about their mean, in one channel at least."""

_SUBFILE_TYPE, _IS_REDUCED = 0x00FE, 1
"""How a camera's file says that its first picture is but a small copy."""

Note = Literal["tiny", "one_colour", "first_of_several", "colour_profile_ignored"]
"""What is odd about a reference and no reason to refuse it; a flag of each clip that has it."""


_SMALLER, _AGAIN = "save it smaller", "save or copy it again"

NOTES: dict[Note, str] = {
    "tiny": f"is enlarged more than {MAX_ENLARGEMENT} times",
    "one_colour": "is of one colour, or nearly so",
    "first_of_several": "has several pictures, of which the first counts",
    "colour_profile_ignored": "has a profile of colours that cannot be used",
}


@dataclass(frozen=True)
class Picture:
    """A picture as viewers show it: RGB, 8 bit, upright. `treatment` is what it took, `notes` what is odd about it."""

    pixels: Image.Image
    treatment: tuple[Treatment, ...] = ()
    notes: tuple[Note, ...] = ()


def load_image(source: Path | bytes) -> Image.Image:
    """As the published code reads references: as `load_picture`, but transparent parts show the colours that the file
    has beneath, which no viewer does, and profiles of colours are not looked at.
    """
    with _upright(source) as (image, _):
        return in_plain_mode(image).convert("RGB")


def load_picture(source: Path | bytes, *, background: RGB | None) -> Picture:
    """A picture file, or its content, as viewers show it; transparent parts show `background`.

    It is turned upright by its EXIF orientation; 16-bit grey is scaled to 8 bits, colours are converted from the file's
    profile to sRGB; of an animation the first frame counts.
    Raises: ImageError, naming the file and quoting nothing of it, when it is missing, damaged, no image of `FORMATS`,
    has more than `MAX_PIXELS` pixels, or is transparent and `background` is None; InfrastructureError when the disk
    does not give it.
    """
    with _upright(source) as (image, frames):
        alpha = transparency(image)
        if alpha is not None and background is None:
            raise ImageError("is transparent in parts", hint="fill them, or set preview.reference_background")
        pixels, profile = in_srgb(image)
        if alpha is not None and background is not None:
            pixels = on_background(pixels, alpha, background)
        treatment: list[Treatment] = ["flattened"] if alpha is not None else []
        treatment += ["converted"] if profile == "converted" else []
        notes: list[Note] = ["one_colour"] if max(ImageStat.Stat(pixels).stddev) < MIN_SPREAD else []
        notes += ["first_of_several"] if frames > 1 else []
        notes += ["colour_profile_ignored"] if profile == "unusable" else []
        return Picture(pixels, tuple(treatment), tuple(notes))


def load_reference(content: bytes, height: int, width: int, mode: Mode, background: RGB | None) -> Picture:
    """The picture, as `load_picture` gives it, that is to be the reference of a clip of `height` x `width` pixels.

    Raises: as that does, and ImageError when it is too elongated for the clip.
    """
    picture = load_picture(content, background=background)
    pixels = picture.pixels
    _final_size(pixels, *reference_size(pixels.width, pixels.height, height=height, width=width, mode=mode))
    if max(pixels.size) * MAX_ENLARGEMENT >= max(height, width):
        return picture
    return replace(picture, notes=("tiny", *picture.notes))


@contextmanager
def _upright(source: Path | bytes) -> Iterator[tuple[Image.Image, int]]:
    """A picture of any mode, and how many the file has. Whatever fails in the block is the picture's fault, too."""
    name = f"{source}: " if isinstance(source, Path) else ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what matters of them is said by an error of ours
            with Image.open(source if isinstance(source, Path) else io.BytesIO(source), formats=FORMATS) as image:
                yield _checked(image, source)
    except ImageError as error:
        raise ImageError(f"{name}{error.args[0]}", hint=error.hint) from None
    except FileNotFoundError:
        raise ImageError(f"{name}no such image") from None
    except Exception as error:  # decoders raise many types on broken files; all mean the same to the user
        if isinstance(error, OSError) and is_the_machines(error):
            raise InfrastructureError(f"{name}{error.strerror}") from error
        reason, hint = _fault(error, source)
        raise ImageError(f"{name}not a readable image: {reason}", hint=hint) from None


def _checked(image: Image.Image, source: Path | bytes) -> tuple[Image.Image, int]:
    """The decoded picture, turned upright, and the number of frames."""
    if image.width * image.height > MAX_PIXELS:
        raise ImageError(f"{image.width}x{image.height} pixels, at most {MAX_PIXELS} in all", hint=_SMALLER)
    if image.format == "TIFF" and int(image.getexif().get(_SUBFILE_TYPE, 0)) & _IS_REDUCED:
        raise _OtherKindError
    check_integrity(_content(source), image.format or "")
    frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)  # phones put a map of depth beside
    return ImageOps.exif_transpose(image), frames


class _OtherKindError(Exception):
    """A camera's file, which begins as TIFF does."""


def _fault(error: Exception, source: Path | bytes) -> tuple[str, str]:
    """What is wrong with a file, and what to do about it; not what decoders say, which may be words of the file."""
    match error:
        case Image.DecompressionBombError():
            return f"more than {MAX_PIXELS} pixels", _SMALLER
        case DamageError():
            return f"damaged, {error}", _AGAIN
        case _OtherKindError():
            kind: tuple[str, str] | None = RAW
        case UnidentifiedImageError():
            kind = kind_of(_content(source))
        case _:
            return f"damaged ({type(error).__name__})", _AGAIN
    if kind:
        return f"it is {kind[0]}", f"{kind[1]}; {TAKEN}"
    return "damaged, or of a kind that is not known", TAKEN


def _content(source: Path | bytes) -> bytes:
    return source.read_bytes() if isinstance(source, Path) else source


def prepare_reference(image: Image.Image, *, height: int, width: int, mode: Mode = "original") -> Tensor:
    """The reference image of a clip of `height` x `width` generated pixels, as the video encoder takes it.

    Returns [1, 3, 1, h', w'] fp32 in [-1, 1] holding bf16-rounded values; h' and w' are multiples of 32 that follow
    the image: its long side becomes the clip's long side, whatever their orientations ("square": 320 x 320 with white
    borders). Two Lanczos resizes, as the model saw it in training. Raises: ImageError when a side falls below 32.
    Source: MAGI-2 preview inference code, image conditioning; diffusers' video processor with factor 32.
    """
    import numpy as np  # not at the top: a batch's images are checked by processes that need neither
    import torch

    target_height, target_width = reference_size(image.width, image.height, height=height, width=width, mode=mode)
    final_height, final_width = _final_size(image, target_height, target_width)
    canvas = letterbox(image.convert("RGB"), height=target_height, width=target_width)
    resized = canvas.resize((final_width, final_height), Image.Resampling.LANCZOS)
    pixels_HWC = torch.from_numpy(np.array(resized, dtype=np.float32) / 255.0)
    pixels_CHW = (2.0 * pixels_HWC - 1.0).permute(2, 0, 1).to(torch.bfloat16).to(torch.float32)
    return pixels_CHW[None, :, None].contiguous()


def _final_size(image: Image.Image, target_height: int, target_width: int) -> tuple[int, int]:
    final_height, final_width = (side // SIDE_MULTIPLE * SIDE_MULTIPLE for side in (target_height, target_width))
    if min(final_height, final_width) < SIDE_MULTIPLE:
        raise ImageError(
            f"image of {image.width}x{image.height} pixels is too elongated: fitted to the clip it is "
            f"{target_width}x{target_height}, both sides must be at least {SIDE_MULTIPLE}",
            hint="crop the image to a ratio closer to the clip's",
        )
    return final_height, final_width


def reference_size(
    image_width: int, image_height: int, *, height: int, width: int, mode: Mode = "original"
) -> tuple[int, int]:
    """Height and width of the letterbox canvas. The short side is truncated; a square image counts as portrait."""
    if mode == "square":
        return SQUARE_SIDE, SQUARE_SIDE
    longest = max(height, width)
    if image_width > image_height:
        return int(image_height * longest / image_width), longest
    return longest, int(image_width * longest / image_height)


def letterbox(image: Image.Image, *, height: int, width: int) -> Image.Image:
    """`image` scaled to fit `height` x `width`, centred on a white canvas of that size."""
    scale = min(width / image.width, height / image.height)
    fitted_width, fitted_height = (max(1, round(side * scale)) for side in image.size)
    fitted = image.resize((fitted_width, fitted_height), Image.Resampling.LANCZOS)
    canvas = Image.new("RGB", (width, height), (255, 255, 255))
    canvas.paste(fitted, (math.floor((width - fitted_width) / 2), math.floor((height - fitted_height) / 2)))
    return canvas
