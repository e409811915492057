"""`torchrun --nproc-per-node N -m benchmarks.node`: steps of the whole preview model on the accelerators of a node.

All layers at full width, random weights made on each device, model, guidance and both solvers as in a render. Each
layout is run twice with equal noise in deterministic mode, and the digests of the latents have to agree. With `--load`
a few layers are written in the published form, and how long every rank takes to read its share is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from magi2 import platform
from magi2.acceptance.floors import step_floor
from magi2.acceptance.measure import GIB, Ceilings, measure_ceilings, release
from magi2.acceptance.preview_shapes import CONFIG, PREVIEW_CLIPS, Clip, random_
from magi2.acceptance.stack import build, denoise, stack
from magi2.models.preview.config import PreviewConfig
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.state_dict import load_preview
from magi2.parallel.layout import ParallelLayout
from magi2.parallel.mesh import Mesh

WARM_UP, STEPS = 2, 10
LATENT_SIZES = {"272p": (32, 16, 28), "540p": (32, 32, 56)}
LOADED_LAYERS = 4


@dataclass(frozen=True)
class NodeResult:
    """One layout at one size. Times are medians of rank 0 in ms; peaks are of every rank, in GiB.

    `exposed_ms` is the time of a step in which rank 0 waited for other ranks. `perfect_ms` is the floor of one card,
    the sum of its parts by ceilings measured in the same run, divided by the number of ranks.
    """

    layout: str
    clip: str
    layers: int
    tokens: int
    step_ms: float
    exposed_ms: float
    sent_mib: float
    perfect_ms: float
    ratio: float
    peak_gib: tuple[float, ...]
    build_s: float
    repeats: bool


def main() -> int:
    """Print a line for each layout and size; 1 when a run did not repeat its digests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", nargs="+", required=True, help="for example sp8.cfg1.ep4 sp8 sp4.cfg2.ep4")
    parser.add_argument("--clips", nargs="+", default=["272p"], choices=sorted(PREVIEW_CLIPS))
    parser.add_argument("--layers", type=int, default=CONFIG.num_layers, help="of the released 40")
    parser.add_argument("--load", type=Path, help="an empty folder of this host for the load time")
    parser.add_argument("--out", type=Path, help="write the results there as JSON")
    arguments = parser.parse_args()
    accelerator = platform.current()
    platform.set_deterministic(True)
    platform.disable_tf32()
    device = platform.activate(accelerator, index=int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(accelerator.collective_backend, device_id=device)
    limits = measure_ceilings(device)
    release()
    results = []
    for text in arguments.layouts:
        layout = ParallelLayout.parse(text)
        mesh = Mesh.create(layout, device)
        results += run_layout(mesh, stack(CONFIG, arguments.layers), arguments.clips, limits)
        release()
    loads = time_loading(mesh, arguments.load) if arguments.load else None
    if dist.get_rank() == 0:
        report(results, loads, arguments.out)
    dist.destroy_process_group()
    return int(not all(result.repeats for result in results))


def run_layout(mesh: Mesh, config: PreviewConfig, clips: list[str], limits: Ceilings) -> list[NodeResult]:
    """Every size under one layout, with one set of weights."""
    started = time.perf_counter()
    model = build(mesh, config)
    platform.synchronize()
    seconds = time.perf_counter() - started
    results = [run_clip(model, mesh, PREVIEW_CLIPS[name], limits, seconds) for name in clips]
    if mesh.rank == 0:
        for result in results:
            print(json.dumps(asdict(result)), flush=True)
    return results


def run_clip(model: PreviewModel, mesh: Mesh, clip: Clip, limits: Ceilings, build_s: float) -> NodeResult:
    """One size: twice the same steps, the second time with measuring."""
    torch.cuda.reset_peak_memory_stats(mesh.device)
    size, steps = LATENT_SIZES[clip.name], WARM_UP + STEPS
    first = denoise(model, size, steps + 1)
    mesh.meter.start()
    second = denoise(model, size, steps + 1)
    exposed_ms = 1e3 * mesh.meter.exposed_s() / steps
    sent_mib = sum(mesh.meter.sent_bytes.values()) / steps / 2**20
    peaks = gather(torch.tensor(torch.cuda.max_memory_allocated(mesh.device) / GIB, device=mesh.device), mesh)
    repeats = gather(torch.tensor(float(first.digest == second.digest), device=mesh.device), mesh)
    step_ms = second.watched.step_ms(WARM_UP)
    perfect_ms = step_floor(model.config, clip, limits) / mesh.layout.num_ranks
    return NodeResult(
        layout=str(mesh.layout),
        clip=clip.name,
        layers=model.config.num_layers,
        tokens=clip.tokens,
        step_ms=round(step_ms, 2),
        exposed_ms=round(exposed_ms, 2),
        sent_mib=round(sent_mib, 1),
        perfect_ms=round(perfect_ms, 2),
        ratio=round(step_ms / perfect_ms, 2),
        peak_gib=tuple(round(peak, 1) for peak in peaks),
        build_s=round(build_s, 1),
        repeats=min(repeats) == 1.0,
    )


def gather(value: Tensor, mesh: Mesh) -> list[float]:
    """A number of every rank."""
    lengths = [1] * mesh.world.size
    values: list[float] = mesh.world.gather_rows(value.float().view(1), lengths, name="benchmark").tolist()
    return values


def time_loading(mesh: Mesh, folder: Path) -> dict[str, float]:
    """Seconds of the slowest rank for a few layers in files that the host has just written, and by bytes for all."""
    config = stack(CONFIG, LOADED_LAYERS)
    if mesh.rank == 0:
        write_layers(config, folder, mesh.device)
    mesh.world.barrier(mesh.device)
    started = time.perf_counter()
    load_preview(folder, config, device=mesh.device, mesh=mesh)
    platform.synchronize()
    seconds = max(gather(torch.tensor(time.perf_counter() - started, device=mesh.device), mesh))
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    with torch.device("meta"):
        whole = sum(tensor.nbytes for tensor in PreviewModel(CONFIG).state_dict().values())
    extrapolated = seconds * whole / size
    return {"layers": LOADED_LAYERS, "gib": size / 2**30, "seconds": seconds, "all_layers_extrapolated_s": extrapolated}


def write_layers(config: PreviewConfig, folder: Path, device: torch.device) -> None:
    """A checkpoint of random weights, one file for each layer and one for the rest."""
    with device:
        model = PreviewModel(config)
    random_(model)
    files: dict[str, dict[str, Tensor]] = {}
    for name, tensor in model.state_dict().items():
        part = ".".join(name.split(".")[:3]) if name.startswith("block.layers.") else "rest"
        files.setdefault(f"{part}.safetensors", {})[name] = tensor.cpu()
    for file, tensors in files.items():
        save_file(tensors, folder / file)
    index = {"metadata": {}, "weight_map": {name: file for file, tensors in files.items() for name in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def report(results: list[NodeResult], loads: dict[str, float] | None, out: Path | None) -> None:
    """Print the load time, and write everything with versions."""
    if loads:
        print(json.dumps({name: round(value, 2) for name, value in loads.items()}), flush=True)
    if out:
        versions = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "collectives": ".".join(map(str, torch.cuda.nccl.version())),
        }
        content = [asdict(result) | {"loading": loads, "versions": versions} for result in results]
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(content, indent=1) + "\n")


sys.exit(main())
