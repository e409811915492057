"""`python -m tests.parallel.rank_worlds FOLDER CASE ...` runs 2, 4 and 8 gloo ranks and leaves what each found as JSON.

A case is a layout and a compute dtype, as `sp2.cfg2 fp32`, or `fp8` for FP8 weights. One process imports and computes
what one rank gives; the ranks of each world are forked from it, one world after the other, and run those of the cases
that are theirs.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the guard against device reads needs it: here once, before ranks are forked
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

from magi2.config.strict import validate
from magi2.models.preview.conditioning import Conditioning, ReferenceImage
from magi2.models.preview.config import PreviewConfig
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.parallelize import ParallelPreview, RankLayout
from magi2.models.preview.state_dict import init_random_, load_preview
from magi2.parallel.buffers import Buffers
from magi2.parallel.expert_exchange import ExpertExchange, Places
from magi2.parallel.layout import ParallelLayout
from magi2.parallel.mesh import Mesh
from magi2.parallel.ulysses import HeadExchange
from magi2.platform import set_deterministic
from tests.models.preview.preview_goldens import CHECKPOINT, DTYPES, conditioning, load_golden, relative_l2, tiny_config
from tests.no_device_read import NoDeviceRead
from tests.parallel.preview_traffic import step_traffic

TESTS = Path(__file__).parents[1]
WORLDS = (2, 4, 8)
TWICE = ("sp2", "sp4", "sp8.ep8", "sp2.cfg2.ep4")
"""Layouts that run again, under the guard against device reads: a run repeats, and no kind of exchange reads."""
ONE_BRANCH = ("sp2", "sp1.cfg2", "sp1.cfg2.ep2", "sp4", "sp2.cfg2.ep4", "sp8.ep4", "sp4.cfg2.ep8")
"""Layouts that run the conditional branch alone as well: all ranks share it, however they part two."""
GUARDED = 2
"""Ranks that are guarded: the others have the same code, and the guard doubles what a run costs."""
GOLDEN_LAYOUTS = {2: "sp2", 4: "sp4", 8: "sp4.cfg2"}
LATENTS, AUDIO, TEXT, NEGATIVE = (3, 5, 5), 13, 7, 12  # 95 and 100 tokens, with an image 102 and 107: nothing divides
TIMESTEP = 417
FORMATS: dict[str, dict[str, Any]] = {
    **{name: {"compute_dtype": dtype} for name, dtype in DTYPES.items()},
    "fp8": {"compute_dtype": torch.float32, "weights": "fp8"},
}
"""How a case's model is loaded."""


def config() -> PreviewConfig:
    """Twelve MoE heads and eight attention heads, as the tiny profile has."""
    path = TESTS.parent / "configs" / "models" / "preview_tiny.json"
    return validate(PreviewConfig, json.loads(path.read_text()), path.name)


def clip(shape: PreviewConfig) -> tuple[Tensor, Tensor, Conditioning]:
    generator = torch.Generator().manual_seed(11)

    def draw(*size: int) -> Tensor:
        return torch.randn(size, generator=generator)

    image = ReferenceImage(draw(1, shape.video_in_channels, 1, 2, 3), draw(shape.text_in_channels))
    texts = draw(1, TEXT, shape.text_in_channels), draw(1, NEGATIVE, shape.text_in_channels)
    video = draw(1, shape.video_in_channels, *LATENTS)
    return video, draw(1, AUDIO, shape.audio_in_channels), Conditioning(*texts, (image,))


@torch.no_grad()
def velocities(model: PreviewModel, *, guard: Any = None, guided: bool = True) -> tuple[Tensor, Tensor]:
    video, audio, inputs = clip(model.config)
    layout = model.prepare(LATENTS, AUDIO, inputs, guided=guided)
    with guard or nullcontext():
        pair: tuple[Tensor, Tensor] = model(video, audio, torch.tensor(TIMESTEP), layout)
    return pair


def digest(pair: tuple[Tensor, Tensor]) -> str:
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in pair)).hexdigest()


def model_case(folder: Path, name: str, dtype: str, expected: tuple[Tensor, Tensor]) -> dict[str, Any]:
    mesh = Mesh.create(ParallelLayout.parse(name), torch.device("cpu"))
    model = load_preview(folder, config(), **FORMATS[dtype], mesh=mesh)
    assert isinstance(model, ParallelPreview)
    mesh.meter.start()
    pair = velocities(model)
    exposed_s, sent = mesh.meter.exposed_s(), dict(mesh.meter.sent_bytes)
    layout = model.prepare(LATENTS, AUDIO, clip(model.config)[2])
    assert isinstance(layout, RankLayout)
    latents = tuple(zip(layout.video_counts, layout.audio_counts, strict=True))
    formula = step_traffic(
        model.config, mesh.layout, layout.token_counts, latents, rank=mesh.rank, itemsize=model.compute_dtype.itemsize
    )
    guard = NoDeviceRead() if mesh.rank < GUARDED else None
    one = velocities(model, guided=False) if name in ONE_BRANCH else None
    return {
        "one_branch": digest(one) if one else None,
        "one_branch_errors": [relative_l2(got, want[:1]) for got, want in zip(one or (), expected, strict=False)],
        "errors": [relative_l2(got, want) for got, want in zip(pair, expected, strict=True)],
        "digests": [digest(pair), *([digest(velocities(model, guard=guard))] if name in TWICE else [])],
        "sent_bytes": sent,
        "formula_bytes": {kind: size for kind, size in formula.items() if size},
        "exposed_s": exposed_s,
        "token_counts": layout.token_counts,
        "held_bytes": sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values()),
    }


@torch.no_grad()
def golden_case(name: str) -> list[float]:
    mesh = Mesh.create(ParallelLayout.parse(name), torch.device("cpu"))
    model = load_preview(CHECKPOINT, tiny_config(), compute_dtype=torch.float32, mesh=mesh)
    stored = load_golden("model_forward")
    layout = model.prepare((3, 4, 6), 20, conditioning("i2v"))
    pair = model(stored["latent"], stored["audio_latent"], torch.tensor(TIMESTEP), layout)
    return [
        relative_l2(got, stored[f"i2v.t417.fp32.{kind}"]) for got, kind in zip(pair, ("video", "audio"), strict=True)
    ]


def published_layout_case(rank: int) -> dict[str, bool]:
    """The exchanges of four ranks, against the published primitives'."""
    stored, lengths = load_golden("parallel_layout"), (3, 3, 2, 2)
    mesh = Mesh.create(ParallelLayout.parse("sp4"), torch.device("cpu"))
    exchange, own = HeadExchange(mesh.cp, Buffers()), slice(sum(lengths[:rank]), sum(lengths[: rank + 1]))
    outbox = exchange.outbox(lengths[rank], 4, 3, stored["full"])
    for kind, block in (("full", slice(0, 2)), ("kv_full", slice(2, 3)), ("kv_full", slice(3, 4))):
        outbox[:, :, block] = stored[kind][own].view(lengths[rank], 4, -1, 3).transpose(0, 1)
    heads = exchange.to_heads(outbox, lengths)
    home = exchange.to_tokens(heads[:, :2].contiguous(), lengths)
    tokens: list[Tensor] = []

    def double(arrived: Tensor) -> Tensor:
        tokens.append(arrived.clone())
        return 2 * arrived

    run = ExpertExchange(mesh.ep, Places(8, 4), Buffers()).start(stored[f"rank{rank}.ep_local"], (2, 2, 2, 2), double)
    run.compute()
    return {
        "queries": torch.equal(heads[:, :2], stored[f"rank{rank}.cp_after_all_to_all_q"]),
        "keys": torch.equal(heads[:, 2:3], stored[f"rank{rank}.cp_after_all_to_all_k"]),
        "home": torch.equal(home.transpose(0, 1).flatten(1, 2), stored[f"rank{rank}.cp_local"]),
        "experts": torch.equal(tokens[0], stored[f"rank{rank}.ep_after_dispatch"]),
        "results": torch.equal(run.result(), 2 * stored[f"rank{rank}.ep_local"]),
    }


def memory_case(folder: Path) -> dict[str, int]:
    """Bytes by which loading raised this process's peak, and bytes that it then holds."""
    mesh = Mesh.create(ParallelLayout.parse("sp2"), torch.device("cpu"))
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident_bytes("VmRSS")
    model = load_preview(folder, large_config(), mesh=mesh)
    held = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    return {"peak": resident_bytes("VmHWM") - before, "held": held}


def resident_bytes(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith(name))


def large_config() -> PreviewConfig:
    """Experts of 48 MiB a layer, so that a process's own needs do not count."""
    small = tiny_config()
    return replace(small, moe_config=replace(small.moe_config, num_experts=64, expert_intermediate_size=512))


def save_large(folder: Path) -> None:
    """A checkpoint of `large_config` in several files, as the published one."""
    with torch.device("meta"):
        shapes = PreviewModel(large_config()).state_dict()
    names, files = sorted(shapes), 6
    folder.mkdir()
    index: dict[str, str] = {}
    for number in range(files):
        part = {name: torch.zeros(shapes[name].shape, dtype=shapes[name].dtype) for name in names[number::files]}
        save_file(part, folder / f"{number}.safetensors")
        index |= dict.fromkeys(part, f"{number}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def rank_main(
    rank: int, world: int, folder: Path, cases: Sequence[str], expected: dict[str, tuple[Tensor, Tensor]]
) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet{world}", rank=rank, world_size=world)
    found: dict[str, Any] = {"models": {}}
    for case in cases:
        name, dtype = case.split()
        if ParallelLayout.parse(name).num_ranks == world:
            found["models"][case] = model_case(folder, name, dtype, expected[dtype])
    found["golden"] = golden_case(GOLDEN_LAYOUTS[world])
    if world == 2:
        found["memory"] = memory_case(folder / "large")
    if world == 4:
        found["published_layout"] = published_layout_case(rank)
    (folder / f"world{world}-rank{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def main(folder: Path, cases: Sequence[str]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    set_deterministic(True)
    model = PreviewModel(config(), compute_dtype=torch.float32)
    init_random_(model, torch.Generator().manual_seed(3))
    tensors = {
        name: value.bfloat16() if name.endswith(("W_gate", "W_up", "W_down")) else value
        for name, value in model.state_dict().items()
    }
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
    expected = {name: velocities(load_preview(folder, config(), **form)) for name, form in FORMATS.items()}
    (folder / "single.json").write_text(json.dumps({dtype: digest(pair) for dtype, pair in expected.items()}))
    save_large(folder / "large")
    for world in WORLDS:
        began = time.monotonic()
        start_processes(rank_main, args=(world, folder, cases, expected), nprocs=world, start_method="fork")  # type: ignore[no-untyped-call]
        sys.stderr.write(f"{world} ranks: {time.monotonic() - began:.1f} s\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
