"""What the device offers, measured and not guessed from its name, and the launch settings that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from triton.runtime import driver

_DESCRIPTOR_ARCH = 90  # the first one with a copy engine for tensor tiles
_WARPGROUP_ARCH = 90  # later ones replaced these products by others
_FP8_ARCH = 89  # the first one with products of e4m3 operands
BARRIER_BYTES = 1024  # more than any kernel's
_INTERPRETED_SHARED_BYTES = 227 * 1024


@dataclass(frozen=True)
class Features:
    """Bytes of shared memory one program may use, whether tiles can be loaded by descriptor, parallel processors.

    `warpgroups` says whether four warps can issue one matrix product from shared memory; `proof` says when to use that.
    `fp8` says whether there are products of e4m3 operands.
    """

    shared_bytes: int
    descriptors: bool
    processors: int
    warpgroups: bool = False
    fp8: bool = False


@dataclass(frozen=True)
class ExpertSettings:
    """Launch settings of the expert kernel: rows and expert columns of a tile, loads in flight, warps.

    `specialised` chooses the kernel of `experts_specialised`, whose settings are its own.
    """

    block_rows: int
    block_width: int
    stages: int
    warps: int
    specialised: bool = False

    def shared_bytes(self, head_dim: int, itemsize: int) -> int:
        """Shared memory of one program: the held rows, and per stage a gate-and-up block and a down block.

        Products of fp32 pass through it as well, since no matrix unit makes them.
        """
        if self.specialised:  # one and a half gate-and-up blocks, two down blocks
            return itemsize * head_dim * (self.block_rows + 5 * self.block_width) + BARRIER_BYTES
        product = 2 * self.block_rows * self.block_width * itemsize if itemsize == 4 else 0
        return itemsize * head_dim * (self.block_rows + self.stages * 3 * self.block_width) + product + BARRIER_BYTES

    def fits(self, available: Features, head_dim: int, width: int, itemsize: int) -> bool:
        """Whether the device has what this needs, and the sizes divide."""
        if self.specialised and not (available.warpgroups and itemsize == 2 and head_dim in (128, 256)):
            return False
        return width % self.block_width == 0 and self.shared_bytes(head_dim, itemsize) <= available.shared_bytes


# Best first, measured on an H200 at 2.2 million routes; the later ones are for devices with less shared memory.
EXPERT_SETTINGS = (
    ExpertSettings(128, 64, 2, 4, specialised=True),
    ExpertSettings(128, 32, 3, 8),
    ExpertSettings(128, 32, 2, 8),
    ExpertSettings(64, 32, 2, 4),
    ExpertSettings(64, 32, 1, 4),
    ExpertSettings(32, 16, 1, 4),
)


def features(device: torch.device) -> Features:
    """The features of `device`; those of a large accelerator without descriptors for the CPU, in the interpreter."""
    if device.type == "cpu":
        return Features(_INTERPRETED_SHARED_BYTES, descriptors=False, processors=3, fp8=True)
    return _measured(device.index or 0)


@cache
def _measured(index: int) -> Features:
    properties = driver.active.utils.get_device_properties(index)
    target = driver.active.get_current_target()
    descriptors = isinstance(target.arch, int) and target.backend == "cuda" and target.arch >= _DESCRIPTOR_ARCH
    warpgroups = descriptors and target.arch == _WARPGROUP_ARCH
    fp8 = isinstance(target.arch, int) and target.backend == "cuda" and target.arch >= _FP8_ARCH
    return Features(properties["max_shared_mem"], descriptors, properties["multiprocessor_count"], warpgroups, fp8)


def expert_settings(available: Features, head_dim: int, width: int, itemsize: int) -> ExpertSettings:
    """The best settings that fit the device and divide the expert width."""
    for settings in EXPERT_SETTINGS:
        if settings.fits(available, head_dim, width, itemsize):
            return settings
    raise ValueError(f"no expert settings fit head dim {head_dim}, width {width}, {available.shared_bytes} bytes")
