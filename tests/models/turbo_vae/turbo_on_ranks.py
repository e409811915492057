"""Run by `test_turbo_ranks`: windows dealt out to ranks, a first rank that stops early, and a rank that fails."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from magi2.models.turbo_vae.config import TINY_TURBO_DECODER
from magi2.models.turbo_vae.decoder import TurboDecoder
from magi2.models.turbo_vae.parallelize import ParallelTurboDecoder
from magi2.models.turbo_vae.windows import Window
from magi2.models.video_vae.initialise import init_random_
from magi2.parallel.layout import ParallelLayout
from magi2.parallel.mesh import Mesh
from tests.rank_launch import on_ranks

LATENTS = 63


def toy() -> TurboDecoder:
    decoder = TurboDecoder(TINY_TURBO_DECODER)
    init_random_(decoder, torch.Generator().manual_seed(5))
    return decoder.requires_grad_(False)


def clip(seed: int) -> Tensor:
    return torch.randn(1, 48, LATENTS, 1, 2, generator=torch.Generator().manual_seed(seed))


class Watched(TurboDecoder):
    """Notes in a file how many windows it has begun, and fails where it is told to."""

    def watch(self, file: Path, fails_at: int | None = None) -> Watched:
        self.file, self.fails_at, self.begun = file, fails_at, 0
        return self

    def decode_window(self, latents: Tensor, window: Window) -> Tensor:
        self.begun += 1
        self.file.write_text(str(self.begun))
        if self.begun == self.fails_at:
            raise MemoryError("no room")
        return super().decode_window(latents, window)


def work(ranks: int, folder: Path) -> None:
    mesh = Mesh.create(ParallelLayout(cp=ranks), torch.device("cpu"))
    watched = Watched(TINY_TURBO_DECODER).requires_grad_(False)
    watched.load_state_dict(toy().state_dict())
    decoder = ParallelTurboDecoder(watched.watch(folder / f"begun-{mesh.rank}"), mesh.world)
    ahead = []
    windows = []
    for index, decoded in enumerate(decoder.decode(clip(1))):
        windows.append(decoded)
        ahead += list(windows_ahead(folder, ranks, index + 1))
    sent = mesh.meter.sent_bytes["turbo.frames"]
    facts: dict[str, Any] = {"windows": len(windows), "ahead": max(ahead, default=0), "sent": sent}
    stopped = decoder.decode(clip(2))
    facts["first"] = len(list(itertools.islice(stopped, 1)))
    del stopped  # closes it: the rest is exchanged and dropped
    unused = decoder.decode(clip(2))
    if mesh.rank:
        facts["first"] += len(list(unused))
    del unused
    watched.watch(folder / "begun", fails_at=2 if mesh.rank == 1 else None)
    failing = []
    try:
        failing += [bool(frames.isfinite().all()) for frames in decoder.decode(clip(3))]
    except MemoryError as error:
        facts["error"] = str(error)
    again = list(decoder.decode(clip(1)))
    facts["finite"] = failing
    (folder / f"{mesh.rank}.json").write_text(json.dumps(facts))
    if mesh.rank == 0:
        frames = {"frames": torch.cat(windows, dim=2), "again": torch.cat(again, dim=2)}
        save_file({name: tensor.contiguous() for name, tensor in frames.items()}, folder / "frames.safetensors")


def windows_ahead(folder: Path, ranks: int, taken: int) -> Iterator[int]:
    """How many windows each rank has begun that the first one has not taken, after it had time to run away."""
    time.sleep(0.05)
    for rank in range(1, ranks):
        file = folder / f"begun-{rank}"
        begun = int(file.read_text() or 0) if file.exists() else 0
        yield begun - len(range(rank, taken, ranks))


if __name__ == "__main__":
    on_ranks(work)
