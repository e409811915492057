"""Reference images: reading what users give, and preparing it exactly as the preview model was trained to see it."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from PIL import Image, ImageOps

from magi2.errors import ImageError, InfrastructureError
from magi2.files import is_the_machines

if TYPE_CHECKING:
    from torch import Tensor

MAX_PIXELS = 2**26
"""8192 x 8192: the largest image that is decoded, 200 MB of RGB."""
SIDE_MULTIPLE = 32
"""Latents are 16 times smaller than pixels and are read in patches of 2."""
SQUARE_SIDE = 320
WIDE_GRAY_MODES = ("I", "I;16", "I;16L", "I;16B", "F")

Mode = Literal["original", "square"]


FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What is decoded. Pillow knows more, some of which it hands to other programs."""


def load_image(source: Path | bytes) -> Image.Image:
    """A picture file, or its content, as 8-bit RGB, turned upright by its EXIF orientation, alpha dropped unblended.

    Grey is replicated, 16-bit grey scaled to 8 bits; of an animation the first frame counts. Raises: ImageError, naming
    the file and quoting nothing of it, when it is missing, is no readable image of `FORMATS` or has more than
    `MAX_PIXELS` pixels; InfrastructureError when the disk does not give it.
    """
    name = f"{source}: " if isinstance(source, Path) else ""
    try:
        with Image.open(source if isinstance(source, Path) else io.BytesIO(source), formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ImageError(f"{name}{image.width}x{image.height} pixels, at most {MAX_PIXELS} in all")
            upright = ImageOps.exif_transpose(image)
            return _eight_bit(upright).convert("RGB")
    except ImageError:
        raise
    except FileNotFoundError:
        raise ImageError(f"{name}no such image") from None
    except Exception as error:  # decoders raise many types on broken files; all mean the same to the user
        if isinstance(error, OSError) and is_the_machines(error):
            raise InfrastructureError(f"{name}{error.strerror}") from error
        reason = type(error).__name__  # and not what they say, which may be words of the file
        raise ImageError(f"{name}not a readable image ({reason})", hint=f"known: {', '.join(FORMATS)}") from None


def _eight_bit(image: Image.Image) -> Image.Image:
    if image.mode not in WIDE_GRAY_MODES:
        return image
    if image.mode == "F":
        raise ValueError("floating-point pixels have no defined range")
    import numpy as np

    return Image.fromarray((np.asarray(image).clip(0, 65535) // 256).astype(np.uint8))


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


def check_image(content: bytes, *, height: int, width: int, mode: Mode = "original") -> None:
    """Raises ImageError if a file's content could not be the reference of a clip of `height` x `width` pixels."""
    image = load_image(content)
    _final_size(image, *reference_size(image.width, image.height, height=height, width=width, mode=mode))


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
