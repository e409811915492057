"""Counts the memory that tensors take, also on the meta device, where nothing is computed."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class PeakBytes(TorchDispatchMode):
    """The most bytes that tensors made under it held at one time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        results = result if isinstance(result, tuple | list) else [result]
        for tensor in (one for one in results if isinstance(one, Tensor)):
            storage = tensor.untyped_storage()
            if storage._cdata not in self.live:  # not the address, which meta tensors do not have
                self.live[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.live.pop, storage._cdata, None)
                self.peak = max(self.peak, sum(self.live.values()))
        return result
