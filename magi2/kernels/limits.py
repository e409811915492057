"""What Triton demands of shapes, so that a kernel refuses in one line before the compiler does it in a hundred.

Every function that launches a kernel `<name>` has a `<name>_refusal` of the shapes beside it: None where the kernel
takes them, else the reason with the value and its limit. Models ask once, when they choose their kernels; the launching
function asks again and raises.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch

logger = logging.getLogger(__name__)

MAX_BLOCK = 2**20  # elements of one block in Triton
MAX_INDEX = 2**31 - 1  # offsets and grids are 32-bit where a kernel says no more
MIN_DOT = 16  # rows, columns and depth of a matrix product
MAX_TOP_K = 32  # the choice is unrolled: more takes minutes to compile
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class UnsupportedShapesError(ValueError):
    """A kernel was started for shapes that it does not take."""


def require(kernel: str, refusal: str | None) -> None:
    """Raise UnsupportedShapesError, which names the kernel and the reason, if there is a refusal."""
    if refusal:
        raise UnsupportedShapesError(f"kernel {kernel}: {refusal}")


def first(*refusals: str | None) -> str | None:
    """The first refusal of several."""
    return next((refusal for refusal in refusals if refusal), None)


def other_dtype(dtype: torch.dtype) -> str | None:
    return None if dtype in DTYPES else f"{dtype} is none of {', '.join(map(str, DTYPES))}"


def no_power_of_two(name: str, value: int, least: int = 1) -> str | None:
    if value >= least and value & (value - 1) == 0:
        return None
    return f"{name} {value} is no power of 2" + (f" from {least} on" if least > 1 else "")


def no_multiple(name: str, value: int, of: int) -> str | None:
    return None if value > 0 and value % of == 0 else f"{name} {value} is no multiple of {of}"


def outside(name: str, value: int, least: int, most: int) -> str | None:
    return None if least <= value <= most else f"{name} {value} is not between {least} and {most}"


def too_much_shared(needed: int, available: int) -> str | None:
    """Both in bytes of shared memory, of one program."""
    return None if needed <= available else f"{needed} bytes of shared memory are more than the device's {available}"


def no_fp8(available: bool) -> str | None:
    return None if available else "the device has no FP8 products: compute capability 8.9 is the first that has"


def log_refusals(model: str, refusals: Mapping[str, str]) -> None:
    """One warning for a model that names every step for which kernels refuse its shapes, with the reason."""
    if refusals:
        steps = "; ".join(f"{step} ({reason})" for step, reason in refusals.items())
        logger.warning("%s: plain torch in place of kernels, which is slower: %s", model, steps)
