"""The one place that asks what accelerator this is; everything else asks here.

On MUSA `torch.cuda.is_available()` stays False even with torchada, so a check written elsewhere would silently fall
back to the CPU. Device strings and collective backends are the native ones; torchada is imported by `activate` alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import platform as host
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from magi2.errors import ConfigError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Accelerator:
    """What differs between platforms: names that torch wants, and whether Triton's kernels run."""

    name: str
    device_type: str
    collective_backend: str
    triton: bool


class MemoryStats(NamedTuple):
    """Bytes held now, the most held since the last reset, and all the device has."""

    allocated: int
    peak: int
    total: int


ACCELERATORS = MappingProxyType(
    {
        "cuda": Accelerator("cuda", device_type="cuda", collective_backend="nccl", triton=True),
        "musa": Accelerator("musa", device_type="musa", collective_backend="mccl", triton=True),
        "cpu": Accelerator("cpu", device_type="cpu", collective_backend="gloo", triton=False),
    }
)


FP8_CAPABILITY = (8, 9)
"""The first compute capability whose matrix units take e4m3."""


def current(name: str | None = None) -> Accelerator:
    """The accelerator of this machine: MUSA before CUDA before CPU, each only if built in and available.

    `name` ("cuda", "musa" or "cpu") overrides the search; an index behind it, as in "cuda:1", is for `activate`.
    Raises ConfigError when it is unknown or not available here.
    """
    if name is None:
        found = next(candidate for candidate in ("musa", "cuda", "cpu") if _is_available(candidate))
        return ACCELERATORS[found]
    name = name.partition(":")[0]
    if name not in ACCELERATORS:
        raise ConfigError(f"device is {name!r}, must be one of {', '.join(ACCELERATORS)}")
    if not _is_available(name):
        raise ConfigError(f"device {name!r} is not available here", hint="unset it, or set it to cpu")
    return ACCELERATORS[name]


def device(index: int = 0, *, accelerator: Accelerator | None = None) -> torch.device:
    """The torch device of the `index`-th accelerator; the CPU is one device whatever the index."""
    chosen = accelerator or current()
    return torch.device("cpu") if chosen.name == "cpu" else torch.device(chosen.device_type, index)


def device_count(*, accelerator: Accelerator | None = None) -> int:
    """How many accelerators this host has; the CPU is one."""
    chosen = accelerator or current()
    return 1 if chosen.name == "cpu" else int(_runtime(chosen).device_count())


def device_name(*, accelerator: Accelerator | None = None) -> str:
    """What the maker calls the current device; on the CPU the machine's architecture."""
    chosen = accelerator or current()
    return host.machine() if chosen.name == "cpu" else str(_runtime(chosen).get_device_name())


def activate(accelerator: Accelerator | None = None, *, index: int | None = None) -> torch.device:
    """Prepare this process for its accelerator and return its device; call it once in each process, before other work.

    On MUSA, and only there, this imports torchada, which patches the importing process. `index` makes that device
    the current one. Raises ConfigError when MUSA is chosen and torchada is missing.
    """
    chosen = accelerator or current()
    if chosen.name == "musa":
        try:
            importlib.import_module("torchada")
        except ImportError as error:
            raise ConfigError(f"MUSA needs torchada: {error}", hint="pip install 'magi2[musa]'") from error
    if chosen.name != "cpu" and index is not None:
        _runtime(chosen).set_device(index)
    logger.info("accelerator %s, collective backend %s", chosen.name, chosen.collective_backend)
    return device(index or 0, accelerator=chosen)


def fp8_refusal(*, accelerator: Accelerator | None = None) -> str | None:
    """Why the current device cannot hold and multiply e4m3 weights, with what to use instead; None where it can.

    The CPU can, the plain way and slowly.
    """
    chosen = accelerator or current()
    advice = "set compute.weights=bf16, on as many cards as that needs (docs/nodes.md)"
    if chosen.name == "musa":
        return f"FP8 weights have no kernels on MUSA: {advice}"
    if chosen.name == "cpu" or (found := tuple(_runtime(chosen).get_device_capability())) >= FP8_CAPABILITY:
        return None
    least, has = (".".join(map(str, pair)) for pair in (FP8_CAPABILITY, found))
    name = device_name(accelerator=chosen)
    return f"{name} has compute capability {has}, FP8 products need {least} (Ada, Hopper or newer): {advice}"


def synchronize(*, accelerator: Accelerator | None = None) -> None:
    """Wait until the current device has done all work given to it. Nothing to wait for on the CPU."""
    chosen = accelerator or current()
    if chosen.name != "cpu":
        _runtime(chosen).synchronize()


def memory_stats(*, accelerator: Accelerator | None = None) -> MemoryStats:
    """Memory of the current device as torch's allocator sees it; on the CPU that of this process, in bytes."""
    chosen = accelerator or current()
    if chosen.name == "cpu":
        return _host_memory()
    runtime = _runtime(chosen)
    _, total = runtime.mem_get_info()
    return MemoryStats(runtime.memory_allocated(), runtime.max_memory_allocated(), total)


def reset_peak_memory(*, accelerator: Accelerator | None = None) -> None:
    """Start a new peak on the current device. On the CPU the peak is the process's and stays."""
    chosen = accelerator or current()
    if chosen.name != "cpu":
        _runtime(chosen).reset_peak_memory_stats()


def empty_cache(*, accelerator: Accelerator | None = None) -> None:
    """Give memory that torch holds but does not use back to the current device. Nothing to do on the CPU."""
    chosen = accelerator or current()
    if chosen.name != "cpu":
        _runtime(chosen).empty_cache()


@contextmanager
def beside(device: torch.device, *, accelerator: Accelerator) -> Iterator[None]:
    """What this thread issues inside goes to `device`, beside what other threads have issued and not behind it.

    Whatever it reads must be there, and it must be waited for before the context ends. The CPU needs nothing of this.
    """
    if accelerator.name == "cpu":
        yield
        return
    runtime = _runtime(accelerator)
    with runtime.device(device), runtime.stream(runtime.Stream()):
        yield


def copy_to_host(tensor: Tensor) -> tuple[Tensor, Callable[[], None]]:
    """A copy on the host, and what waits until it is there; the device goes on with what it is given meanwhile.

    On the CPU it is the tensor itself, on MUSA the copy has been waited for.
    """
    if tensor.device.type != "cuda":
        return tensor.cpu(), _nothing
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(tensor.device))
    return copy, done.synchronize


def _nothing() -> None:
    pass


def set_deterministic(enabled: bool) -> None:
    """Make torch refuse or replace operations whose result varies from run to run; no seed is touched.

    Call it before the first matrix product: cuBLAS reads its workspace variable when it starts.
    """
    if enabled:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    # `use_deterministic_algorithms` would import torch's compiler, for two seconds and for nothing: we compile nothing.
    torch.set_deterministic_debug_mode("error" if enabled else "default")
    # Filling every fresh tensor with NaN only finds bugs; it would write 228 GB of weights twice.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def disable_tf32() -> None:
    """Keep fp32 products in fp32: embedders, router logits and heads are defined that way, containers may differ."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    mudnn = getattr(torch.backends, "mudnn", None)
    if mudnn is not None:
        mudnn.allow_tf32 = False


def _is_available(name: str) -> bool:
    if name == "cuda":
        return torch.version.cuda is not None and bool(torch.cuda.is_available())
    if name == "musa":
        return _has_musa_build() and bool(_runtime(ACCELERATORS["musa"]).is_available())
    return True


def _has_musa_build() -> bool:
    # torch_musa sets torch.version.musa when it is imported, which nobody may have done yet.
    return getattr(torch.version, "musa", None) is not None or importlib.util.find_spec("torch_musa") is not None


def _runtime(accelerator: Accelerator) -> Any:
    """`torch.cuda`, or `torch.musa`, which has the same functions and exists once torch_musa is imported."""
    if accelerator.name == "musa" and not hasattr(torch, "musa"):
        importlib.import_module("torch_musa")
    return getattr(torch, accelerator.device_type)


def _host_memory() -> MemoryStats:
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = usage if sys.platform == "darwin" else usage * 1024
    page = os.sysconf("SC_PAGE_SIZE")
    statm = Path("/proc/self/statm")
    allocated = int(statm.read_text().split()[1]) * page if statm.exists() else peak
    return MemoryStats(allocated, max(peak, allocated), os.sysconf("SC_PHYS_PAGES") * page)
