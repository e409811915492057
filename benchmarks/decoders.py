"""Decoding a 1088x1920 clip: windows of the turbo decoder, the sound of ten seconds, and the clip with its file."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from magi2.acceptance.decoders import random_audio_decoder, random_turbo_decoder
from magi2.acceptance.measure import GIB, Result, settle, timed
from magi2.media.ffmpeg import find_ffmpeg
from magi2.media.frames import to_uint8
from magi2.media.lossless import LosslessWriter
from magi2.models.turbo_vae.decoder import TurboDecoder
from magi2.platform import copy_to_host
from magi2.stages.behind import Behind
from magi2.stages.decode import written_by

LATENTS = (1, 48, 63, 68, 120)
AUDIO_LATENTS = 250
Decode = Callable[[TurboDecoder, Tensor, LosslessWriter], None]


@torch.no_grad()
def run(device: torch.device) -> list[Result]:
    """Windows, the whole network, the clip with its file written in line and behind, and the sound.

    The floor of a clip with its file is the network of the same run.
    """
    decoder = random_turbo_decoder(device)
    latents = torch.randn(LATENTS, device=device)
    windows = decoder.plan(LATENTS[2])
    torch.cuda.reset_peak_memory_stats(device)
    first, middle = (timed(partial(decoder.decode_window, latents, windows[at]), 2) for at in (0, 3))
    network = _network(decoder, latents)
    print(f"turbo decoder: peak {torch.cuda.max_memory_allocated(device) / GIB:.1f} GiB", flush=True)
    return [
        Result("turbo_first_window", 0, first, 0),
        Result("turbo_window", 0, middle, 0),
        Result("turbo_clip", 0, network, 0),
        Result("clip_in_line", 0, _with_file(_in_line, decoder, latents), network),
        Result("clip_behind", 0, _with_file(_behind, decoder, latents), network),
        _audio(device),
    ]


def _network(decoder: TurboDecoder, latents: Tensor) -> float:
    started = time.perf_counter()
    for pixels in decoder.decode(latents):
        to_uint8(pixels)
    settle(latents.device)
    return 1e3 * (time.perf_counter() - started)


def _with_file(
    decode: Callable[[TurboDecoder, Tensor, LosslessWriter], None], decoder: TurboDecoder, latents: Tensor
) -> float:
    width, height = (decoder.spatial_stride * cells for cells in (latents.shape[4], latents.shape[3]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture.mkv"
        writer = LosslessWriter(path, width=width, height=height, fps=Fraction(25), ffmpeg=find_ffmpeg())
        started = time.perf_counter()
        decode(decoder, latents, writer)
        return 1e3 * (time.perf_counter() - started)


def _in_line(decoder: TurboDecoder, latents: Tensor, writer: LosslessWriter) -> None:
    with writer:
        for pixels in decoder.decode(latents):
            writer.write(to_uint8(pixels))


def _behind(decoder: TurboDecoder, latents: Tensor, writer: LosslessWriter) -> None:
    """As the stage does it."""
    with Behind(written_by(writer)) as behind, writer:
        for pixels in decoder.decode(latents):
            behind.put(copy_to_host(to_uint8(pixels)))
        behind.finish()


def _audio(device: torch.device) -> Result:
    decoder = random_audio_decoder(device)
    latents = torch.randn(1, AUDIO_LATENTS, 64, device=device)
    return Result("audio", 0, timed(lambda: decoder.decode(latents), 3), 0)
