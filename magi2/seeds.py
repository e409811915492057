"""Seeds: what is allowed, and the one a clip gets when it names none; torch-free, since planning needs them."""

from __future__ import annotations

import hashlib
import re

from magi2.errors import InputError

MAX_SEED = 2**53 - 1  # the largest integer that JSON readers keep exact


def check_seed(seed: int) -> int:
    """The seed itself. Raises InputError when it is not an integer from 0 to 2^53 - 1."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        raise InputError(f"seed is {seed!r}, must be an integer from 0 to {MAX_SEED}")
    return seed


def derive_seed(prompt: str, image_sha256: str | None) -> int:
    """The seed, 0..2^32-1, of a clip that names none: the same prompt and image give the same one under any profile.

    The first four bytes, big endian, of SHA-256 over the UTF-8 bytes of `prompt` without leading and trailing white
    space, followed, when there is an image, by one zero byte and the 32 raw bytes of its SHA-256.
    Raises InputError when the prompt has an unpaired surrogate or `image_sha256` is not 64 hexadecimal digits.
    """
    try:
        message = prompt.strip().encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"prompt is not valid Unicode: {error}") from error
    if image_sha256 is not None:
        if not re.fullmatch(r"[0-9a-fA-F]{64}", image_sha256):
            raise InputError(f"image digest is {image_sha256[:80]!r}, must be 64 hexadecimal digits of SHA-256")
        message += b"\0" + bytes.fromhex(image_sha256)
    return int.from_bytes(hashlib.sha256(message).digest()[:4], "big")
