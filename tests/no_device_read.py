"""A guard against waiting for an accelerator, for hosts without one."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class NoDeviceRead(TorchDispatchMode):
    """Refuses every operation that would make the host wait for an accelerator."""

    waiting = ("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal", "bincount", "_unique2")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in self.waiting, f"{func} waits for the device"
        if name in ("index", "index_put", "index_put_"):
            indices = [index for index in args[1] if index is not None]
            assert all(index.dtype not in (torch.bool, torch.uint8) for index in indices), f"{func} by a mask waits"
        return func(*args, **(kwargs or {}))
