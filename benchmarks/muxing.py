"""`python -m benchmarks.muxing [--cores N] [--frames N] [--out FILE]`: a 1080p clip from lossless frames to the mp4.

The picture is three discs that move before a wall that pans, with grain that is new in every frame: it takes an encoder
about what a film does, and the same every time. The process and what it starts keep to so
many cores. Of each part wall seconds and processor seconds: the stage's own parts, which follow one another, and of
ffmpeg's run what reading alone and reading with the change of colours take, which go on side by side with the encoder.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path

import ffmpeg as graph
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from magi2.media.audio import write_audio
from magi2.media.deliver import SCALER_FLAGS, deliver
from magi2.media.delivery import SAMPLE_RATE_HZ, DeliverySpec
from magi2.media.ffmpeg import Ffmpeg, file_url, find_ffmpeg, run_ffmpeg
from magi2.media.lossless import LosslessWriter
from magi2.media.poster import write_contact_sheet, write_poster, write_thumbnail
from magi2.media.probe import probe

WIDTH, HEIGHT = 1920, 1088
DELIVERED = (1920, 1080)
FPS = Fraction(25)
DISCS = ((300, 700, 7, 190, (90, -60, -60)), (900, 300, -4, 260, (-70, 60, 90)), (600, 1300, 2, 120, (80, 80, -70)))
"""Row and column of the middle in the first frame, pixels a frame, radius, levels of the three colours."""
GRAIN = 1.5
"""Levels by which a pixel is off, as in a film that was well lit."""
PAN = 3
"""Pixels by which the wall moves from frame to frame."""


def natural_frames(count: int) -> Iterator[Tensor]:
    """uint8 [1, H, W, 3], one after the other."""
    generator = torch.Generator().manual_seed(0)
    wall = _wall(WIDTH + PAN * count, generator)
    for number in range(count):
        levels = 127.5 + wall[:, :, PAN * number : PAN * number + WIDTH]
        for disc in DISCS:
            _lay_over(levels, disc, number)
        levels += GRAIN * torch.randn(HEIGHT, WIDTH, generator=generator)
        yield levels.clamp(0, 255).to(torch.uint8).permute(1, 2, 0)[None].contiguous()


def _lay_over(levels: Tensor, disc: tuple[int, int, int, int, tuple[int, ...]], number: int) -> None:
    """A disc with a soft edge, where it is in this frame, over the picture [3, H, W] in place."""
    row, column, speed, radius, colour = disc
    down = torch.arange(HEIGHT).unsqueeze(1) - row
    across = torch.arange(WIDTH).unsqueeze(0) - (column + speed * number) % WIDTH
    share = (radius - (down.square() + across.square()).float().sqrt()).div(3).clamp(0, 1)
    levels += share * (127.5 + torch.tensor(colour).float()[:, None, None] - levels)


def _wall(width: int, generator: torch.Generator) -> Tensor:
    """Blotches of every size, the larger the stronger: [3, H, width] levels around 0."""
    wall = torch.zeros(3, HEIGHT, width)
    for cell in (2, 8, 32, 128):
        size = (HEIGHT // cell + 1, width // cell + 1)
        blotches = torch.randn(1, 3, *size, generator=generator)
        wall += cell**0.5 * interpolate(blotches, size=(HEIGHT, width), mode="bicubic")[0]
    return wall


def measured(work: Callable[[], object]) -> dict[str, float]:
    """Wall and processor seconds of a call and of the programs that it ran."""
    started, before = time.perf_counter(), _cpu_s()
    work()
    return {"wall_s": round(time.perf_counter() - started, 2), "cpu_s": round(_cpu_s() - before, 2)}


def _cpu_s() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, kinds))


def measure(folder: Path, frames: int, ffmpeg: Ffmpeg) -> Iterator[tuple[str, dict[str, float]]]:
    """Each part with its figures, in the order of the stages."""
    picture, sound, clip, spec = folder / "p.mkv", folder / "s.wav", folder / "c.mp4", DeliverySpec(size=DELIVERED)
    with LosslessWriter(picture, width=WIDTH, height=HEIGHT, fps=FPS, ffmpeg=ffmpeg) as writer:
        for frame in natural_frames(frames):
            writer.write(frame)
    seconds = torch.arange(round(frames / FPS * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    write_audio(sound, 0.3 * torch.sin(2 * torch.pi * 440 * seconds).expand(2, -1).contiguous())
    source = graph.input(file_url(picture)).video
    colours = {"out_color_matrix": "bt709", "out_range": "tv", "flags": f"lanczos+{SCALER_FLAGS}"}
    coloured = source.filter("scale", **colours).filter("format", "yuv420p")
    for name, stream in (("reading alone", source), ("reading and colours", coloured)):
        nothing = graph.output(stream, "-", format="null")
        yield name, measured(partial(run_ffmpeg, ffmpeg, nothing, purpose="measure"))
    run = partial(deliver, fps=FPS, frame_count=frames, metadata={}, ffmpeg=ffmpeg)
    yield "deliver", measured(partial(run, picture, sound, clip, spec))
    yield "probe", measured(lambda: probe(clip))
    yield "poster and thumbnail", measured(lambda: _pictures(picture, folder))
    yield "contact sheet", measured(lambda: write_contact_sheet(picture, folder / "sheet.jpg"))


def _pictures(picture: Path, folder: Path) -> None:
    write_poster(picture, folder / "poster.jpg")
    write_thumbnail(folder / "poster.jpg", folder / "thumb.jpg")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=8)
    parser.add_argument("--frames", type=int, default=249)
    parser.add_argument("--out", type=Path, help="write the results there as JSON")
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[: arguments.cores]
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(len(cores))
    ffmpeg = find_ffmpeg()
    found: dict[str, object] = {"cores": len(cores), "frames": arguments.frames, "ffmpeg": ffmpeg.version}
    mux = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name, figures in measure(Path(folder), arguments.frames, ffmpeg):
            print(f"{name:24}{figures['wall_s']:8.2f} s{figures['cpu_s']:8.2f} CPU-s", flush=True)
            found[name] = figures
            mux += figures["wall_s"] if name in ("deliver", "probe", "poster and thumbnail", "contact sheet") else 0.0
        found["bytes"] = (Path(folder) / "c.mp4").stat().st_size
    found["mux_s"] = round(mux, 2)
    print(f"mux of {arguments.frames} frames on {len(cores)} cores: {mux:.2f} s, {found['bytes']} bytes")
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
