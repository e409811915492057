"""The turbo decoder on many ranks: windows are dealt out in turn, the first rank hands them on in order of time.

A rank that has decoded a window waits until the first rank has taken it, so nobody is more than one window ahead and
the first rank holds one received window beside its own work. The bits are those of one rank.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from magi2.models.turbo_vae.decoder import TurboDecoder
from magi2.models.turbo_vae.windows import Window
from magi2.parallel.collectives import Group


class ParallelTurboDecoder:
    """A decoder of each rank of a group; inference only."""

    def __init__(self, decoder: TurboDecoder, group: Group) -> None:
        self.decoder, self._group = decoder, group

    def decode(self, latents: Tensor) -> Iterator[Tensor]:
        """On the first rank the frames of normalised `latents` [B,48,T,h,w], in the same windows as on one rank.

        Every rank calls it with the same latents and goes through what it yields, which is nothing on other ranks than
        the first. When a rank fails, or the first one stops early, the rest is still exchanged, so that no rank is left
        waiting: windows that a failing rank owes arrive as NaN, and the error is raised on that rank.
        Raises: ContractError on another layout.
        """
        self.decoder.check(latents)
        plan = self.decoder.plan(latents.shape[2])
        owners = [index % self._group.size for index in range(len(plan))]
        if self._group.rank == 0:
            stream = self._gather(latents, deque(zip(plan, owners, strict=True)))
            next(stream)
            return stream
        own = deque(window for window, owner in zip(plan, owners, strict=True) if owner == self._group.rank)
        return self._serve(latents, own)

    def _gather(self, latents: Tensor, windows: deque[tuple[Window, int]]) -> Iterator[Tensor]:
        try:
            yield latents  # for `decode`: a generator that has not begun would not notice its end
            while windows:
                window, owner = windows.popleft()
                own = owner == self._group.rank
                yield self.decoder.decode_window(latents, window) if own else self._receive(latents, window, owner)
        finally:
            for window, owner in windows:
                if owner != self._group.rank:
                    self._receive(latents, window, owner)

    def _serve(self, latents: Tensor, windows: deque[Window]) -> Iterator[Tensor]:
        try:
            while windows:
                self._send(self.decoder.decode_window(latents, windows[0]))
                windows.popleft()
        finally:
            for window in windows:
                self._send(self._frames(latents, window).fill_(torch.nan))
        yield from ()

    def _frames(self, latents: Tensor, window: Window) -> Tensor:
        """Room for a window's frames."""
        stride = self.decoder.spatial_stride
        shape = (latents.shape[0], self.decoder.config.out_channels, window.frame_count)
        size = (latents.shape[3] * stride, latents.shape[4] * stride)
        return torch.empty(*shape, *size, dtype=self.decoder.compute_dtype, device=self.decoder.device)

    def _receive(self, latents: Tensor, window: Window, owner: int) -> Tensor:
        frames = self._frames(latents, window)
        dist.recv(frames, group=self._group.process_group, group_src=owner)
        return frames

    def _send(self, frames: Tensor) -> None:
        self._group.meter.count("turbo.frames", frames.nbytes)
        dist.send(frames.contiguous(), group=self._group.process_group, group_dst=0)
