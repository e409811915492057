"""The installed set of libraries whose versions shape speed and bits, as far as no recipe names them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType

NONE = "none"


@cache
def installed() -> Mapping[str, str]:
    """Versions of `torch`, `triton` and the library of `attention`; ``none`` for what is not there."""
    import torch

    return MappingProxyType({"torch": torch.__version__, "triton": _triton(), "attention": _attention()})


def _triton() -> str:
    try:
        import triton
    except ImportError:
        return NONE
    return str(triton.__version__)


def _attention() -> str:
    """The library that the preview would ask first."""
    import torch

    if _triton() != NONE:
        from magi2.kernels.attention import flash_library

        if library := flash_library():
            return library
    return f"cuDNN {torch.backends.cudnn.version()}" if torch.backends.cudnn.is_available() else "torch"


def distribution_version(name: str) -> str:
    """The installed version of a distribution, or ``none``."""
    try:
        return version(name)
    except PackageNotFoundError:
        return NONE
