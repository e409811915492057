"""What a clip looks like while its preview is being made: at each snapshot the first frame of what the solver then
takes for the clean latents, as the turbo decoder shows it.

A picture is a document `snapshots/pictures/<clip id>.webp`, no part of any artifact: it is replaced at the next
snapshot and removed once the preview is made. No clip fails for want of one, and none has other bits for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod

import torch
from torch import Tensor

from magi2 import platform
from magi2.errors import Magi2Error, OutOfMemoryError
from magi2.media.frames import to_uint8
from magi2.media.poster import small_picture
from magi2.models.turbo_vae.decoder import TurboDecoder
from magi2.models.turbo_vae.loading import load_turbo_decoder
from magi2.parallel.memory import RESERVE_BYTES
from magi2.stages.context import StageContext
from magi2.stages.snapshots import picture_name
from magi2.types import Clip

logger = logging.getLogger(__name__)

LONGEST_SIDE = 320
"""Pixels of a picture."""
LIMIT_S = 1.0
"""Where a picture takes longer, no further one is made; but for the first, which waits for libraries to start."""
CPU_PIXELS = 256 * 128
"""On the CPU only previews of fewer pixels are shown."""
_BYTES_A_CELL = 256 << 10
"""Of the decoder's activations for one latent cell; a window of 73,440 cells took 200 KiB for each on an H200."""
_ESTIMATE = "video_solver.estimate"


class ClipPictures:
    """Makes the pictures of one preview stage; of what goes wrong the log tells once, and no further one is made."""

    def __init__(self, context: StageContext) -> None:
        self._context = context
        self._decoder: TurboDecoder | None = None
        self._count = 0
        self._is_off = not _is_wanted(context)

    @contextmanager
    def of(self, clip: Clip, *, is_resumed: bool) -> Iterator[Callable[[Mapping[str, Tensor]], None] | None]:
        """What shows a loop's state of this clip, from any thread; the picture is gone when the context ends well.

        None where none is made. Of a clip that `is_resumed` an earlier run may have left one.
        """
        if self._is_off:
            yield None
            return
        before = self._count
        yield lambda tensors: self._show(picture_name(clip.clip_id), tensors)
        if is_resumed or self._count > before:
            self._remove(picture_name(clip.clip_id))

    def _show(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        context = self._context
        if self._is_off:
            return
        try:
            # Of this thread: it has neither the stage's device nor, since the clip goes on, its stream.
            with platform.beside(context.device, accelerator=context.accelerator):
                self._require_room(tensors[_ESTIMATE])
                decoder = self._loaded()
                started = time.monotonic()
                content = _picture(decoder, tensors[_ESTIMATE])
                seconds = time.monotonic() - started
            context.store.put_document(name, content)
        except Exception as error:  # whatever it is, the clip goes on
            self._end(f"{type(error).__name__}: {error}")
            return
        self._count += 1
        logger.info("%s: %d bytes in %.2f s", name, len(content), seconds)
        if self._count > 1 and seconds > LIMIT_S:
            self._end(f"the last took {seconds:.1f} s, at most {LIMIT_S:.1f} s are given to it")

    def _require_room(self, latents: Tensor) -> None:
        """Raises OutOfMemoryError when a card has no room for a frame of these latents beside the models."""
        if self._context.accelerator.name != "cpu":
            require_room(platform.memory_stats(accelerator=self._context.accelerator), prod(latents.shape[-2:]))

    def _loaded(self) -> TurboDecoder:
        context = self._context
        if self._decoder is None:
            folder = context.weights.folder("turbo_vae")
            self._decoder = load_turbo_decoder(folder, device=context.device, dtype=context.compute_dtype)
        return self._decoder

    def _remove(self, name: str) -> None:
        try:
            self._context.store.remove_document(name)
        except Magi2Error as error:
            logger.warning("%s: not removed: %s", name, error)

    def _end(self, reason: str) -> None:
        self._is_off = True
        self._decoder = None
        logger.warning("clips at work are no longer shown: %s", reason)


def require_room(memory: platform.MemoryStats, cells: int) -> None:
    """Raises OutOfMemoryError when a frame of so many latent cells does not fit beside the most that was taken yet."""
    need = cells * _BYTES_A_CELL
    if memory.total - memory.peak - RESERVE_BYTES < need:
        sizes = (f"{size / 2**30:.1f}" for size in (need, memory.peak, memory.total))
        raise OutOfMemoryError("one takes {} GiB, the models took {} of {}".format(*sizes))


def _is_wanted(context: StageContext) -> bool:
    profile = context.book.profile
    is_small = profile.preview.width * profile.preview.height < CPU_PIXELS
    return (
        context.shows_pictures
        and context.team.leads
        and context.snapshot_every > 0
        and profile.decode.decoder == "turbo"
        and (context.accelerator.name != "cpu" or is_small)
    )


@torch.no_grad()
def _picture(decoder: TurboDecoder, latents: Tensor) -> bytes:
    """The first frame as WebP, in small."""
    return small_picture(to_uint8(decoder.decode_first(latents))[0].cpu(), LONGEST_SIDE)
