"""Working through video a few frames at a time, so that a window of 1088x1920 pixels needs two activations, not five.

The largest activation, 128 channels at 36 x 544 x 960, takes 4.8 GB in bf16. What lies between two of them (the fp32 of
a norm, its result, the copy with repeated ends, a convolution's workspace) exists for a few frames only. Accelerators
have activations laid out channels last: convolutions need no transposed copies there, frames lie one after another.
"""

# Shapes: B clips, C channels, T frames, H rows, W columns

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

# Elements of an activation handled at once: two frames of the largest, 0.27 GB in bf16.
BLOCK_ELEMENTS = 2**27

FrameMap = Callable[[Tensor], Tensor]


class TimeConv(Protocol):
    """A convolution that makes frames [B,D,T,H,W] from [B,C,T + 2 * reach,H,W]."""

    reach: int
    out_channels: int

    def __call__(self, frames: Tensor, /) -> Tensor: ...


def convolution_layout(device: torch.device) -> torch.memory_format:
    """The layout of activations and weights [B,C,T,H,W] on a device; the CPU gains nothing by another."""
    return torch.contiguous_format if device.type == "cpu" else torch.channels_last_3d


def new_frames(like: Tensor, channels: int, count: int, *, scale: int = 1) -> Tensor:
    """An uninitialised activation [B,channels,count,scale*H,scale*W] in the device's layout."""
    b, _, _, h, w = like.shape
    shape = (b, channels, count, scale * h, scale * w)
    layout = convolution_layout(like.device)
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=layout)


def frame_blocks(x: Tensor) -> list[tuple[int, int]]:
    """Consecutive ranges of frames of [B,C,T,H,W], each of at most BLOCK_ELEMENTS elements or one frame."""
    step = max(1, BLOCK_ELEMENTS // max(1, x[:, :, 0].numel()))
    return [(start, min(start + step, x.shape[2])) for start in range(0, x.shape[2], step)]


def with_neighbours(x: Tensor, reach: int, prepare: FrameMap) -> Iterator[tuple[int, int, Tensor]]:
    """`(start, stop, frames)` over the blocks of `x`: frames [start - reach, stop + reach), each prepared once.

    Beyond the ends the first and the last frame are repeated. When a block is handed out, frames before `stop` have
    been read for the last time.
    """
    done, total = 0, x.shape[2]
    kept: Tensor | None = None
    for start, stop in frame_blocks(x):
        ready = min(stop + reach, total)
        frames = _extend(kept, prepare(x[:, :, done:ready]), stop - start, reach)
        done, kept = ready, frames[:, :, stop - start :]
        yield start, stop, frames


def _extend(kept: Tensor | None, fresh: Tensor, count: int, reach: int) -> Tensor:
    """The kept frames (at the start copies of the first one), the fresh ones, and copies of the last up to the size."""
    if reach == 0:
        return fresh
    head = reach if kept is None else 2 * reach
    place = head + fresh.shape[2]
    frames = new_frames(fresh, fresh.shape[1], count + 2 * reach)
    frames[:, :, :head] = fresh[:, :, :1] if kept is None else kept
    frames[:, :, head:place] = fresh
    frames[:, :, place:] = frames[:, :, place - 1 : place].clone()
    return frames


def convolve(
    conv: TimeConv,
    x: Tensor,
    *,
    prepare: FrameMap = lambda frames: frames,
    shortcut: tuple[Tensor, FrameMap] | None = None,
    overwrite: bool = False,
) -> Tensor:
    """`conv` over the prepared frames of [B,C,T,H,W], ends repeated; plus, with `shortcut` (y, map), `map(y)`.

    `overwrite` lets the result take the place of `x`, whose values are then lost, unless a backward pass needs them.
    """
    out = x if overwrite and not x.requires_grad else new_frames(x, conv.out_channels, x.shape[2])
    for start, stop, frames in with_neighbours(x, conv.reach, prepare):
        made = conv(frames)
        if shortcut is not None:
            added, change = shortcut
            made = change(added[:, :, start:stop]) + made
        out[:, :, start:stop] = made
    return out
