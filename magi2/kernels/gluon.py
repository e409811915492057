"""Triton's experimental language by the names that this project uses, whatever the installed version calls them.

The one place that knows of renamed functions: 3.7 has `barrier` for `thread_barrier`, and 3.9 has `tma.async_load` for
`tma.async_copy_global_to_shared`. Importing it fails where Triton has no such language.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

__all__ = [
    "TensorDescriptor",
    "async_copy",
    "fence_async_shared",
    "jit",
    "language",
    "load_tile",
    "mbarrier",
    "synchronise",
    "warpgroup_mma",
    "warpgroup_mma_wait",
]

jit = gluon.jit
synchronise = language.barrier if hasattr(language, "barrier") else language.thread_barrier
load_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
