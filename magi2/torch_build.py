"""What the installed torch was built for, without importing it: that takes longer than many tasks of a CPU host."""

from __future__ import annotations

from importlib import metadata, util


def is_cpu_only() -> bool:
    """Whether torch can use no accelerator here, whatever the host has; False where its version does not tell."""
    return util.find_spec("torch_musa") is None and metadata.version("torch").endswith("+cpu")


def is_cpu(device: str | None) -> bool:
    """Whether MAGI2_DEVICE of this value, or its absence, means the CPU; False where torch alone would know."""
    return is_cpu_only() if device is None else device.partition(":")[0] == "cpu"
