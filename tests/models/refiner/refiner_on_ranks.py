"""Run by `test_refiner_ranks`: golden cases of the tiny refiner under layouts of a number of ranks.

Layouts and their cases, of which the last runs twice, stand in the file `CASES` beside the folders of the ranks.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the guard against device reads needs it: here once, before ranks are forked
from safetensors.torch import load_file, save_file
from torch import Tensor

from magi2.models.refiner.config import RefinerConfig
from magi2.models.refiner.context import Refiner
from magi2.models.refiner.loading import load_refiner
from magi2.models.refiner.partition import GridPart
from magi2.parallel.layout import ParallelLayout
from magi2.parallel.mesh import Mesh
from magi2.platform import set_deterministic
from magi2.sampling.refine import denoise_refiner, upsample_latents
from tests.no_device_read import NoDeviceRead
from tests.rank_launch import on_ranks

TINY = RefinerConfig(
    num_layers=5, hidden_size=128, head_dim=32, num_query_groups=2, text_in_channels=96, mm_layers=(0, 1, 4)
)
CPU = torch.device("cpu")
TESTS = Path(__file__).parents[2]
SAMPLED = "sp2.cfg2"
"""The layout that makes a full run, too: blocks of the grid and both guidance halves."""
CASES = "cases.json"
GUARDED = 2
"""Ranks that are guarded against device reads, one of them between two others: the guard doubles what a run costs."""


def digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()


def grid_size(latents: Tensor) -> tuple[int, int, int]:
    frames, height, width = latents.shape[2:]
    return frames, height, width


@torch.no_grad()
def work(ranks: int, folder: Path) -> None:
    set_deterministic(True)
    golden, cases = TESTS / "golden" / "refiner", json.loads((folder.parent / CASES).read_text())
    for name, layout in ((name, ParallelLayout.parse(name)) for name in cases):
        if layout.num_ranks != ranks:
            continue
        mesh = Mesh.create(layout, CPU)
        results: dict[str, Tensor] = {}
        facts: dict[str, dict[str, Any]] = {}
        refiner = load_refiner(golden / "tiny_checkpoint", TINY, compute_dtype=torch.float32, mesh=mesh)
        for case in cases[name]:
            given = load_file(golden / f"{case}.safetensors")
            grid = refiner.prepare_grid(grid_size(given["video"]))
            assert isinstance(grid, GridPart)
            context = refiner.prepare(grid, given["text"], given.get("audio"))
            mesh.meter.start()
            with NoDeviceRead() if mesh.rank < GUARDED else nullcontext():
                results[case] = refiner(given["video"], context).contiguous()
            facts[case] = {
                "sent_bytes": dict(mesh.meter.sent_bytes),
                "tokens": grid.num_tokens,
                "seam": sum(grid.send_rows),
                "tail": len(context.tail),
                "digest": digest(results[case]),
            }
        facts["again"] = {"digest": digest(refiner(given["video"], context))}
        if name == SAMPLED:
            results["sampling"] = sample(refiner, load_file(golden / "sampling_5step.safetensors"))
            facts["sampling"] = {"digest": digest(results["sampling"])}
        (folder / f"{name}.{mesh.rank}.json").write_text(json.dumps(facts))
        if mesh.rank == 0:
            save_file(results, folder / f"{name}.safetensors")


def sample(refiner: Refiner, given: dict[str, Tensor]) -> Tensor:
    latents = upsample_latents(given["preview_latent"], (9, 22))
    grid = refiner.prepare_grid(grid_size(latents))
    contexts = [refiner.prepare(grid, given[name]) for name in ("context", "context_null")]
    return denoise_refiner(refiner, latents, given["noise"], *contexts).contiguous()


if __name__ == "__main__":
    on_ranks(work)
