"""The whole preview on one card in FP8, beside bf16 in one run: `python -m benchmarks.one_card [--out FILE]`.

Sections, chosen by `--only`:

- `experts`: routed experts without their combine, at 272p and 540p;
- `layers`: a sparse and a dense layer at 272p and 540p in each format, in turn; and from them a clip of 1080p: a
  hundred guided steps at 540p by its layers, and the rest (refiner, decoders, encoder, mux) as measured in bf16;
- `stack`: all 40 layers at 272p with random weights, made on the card a part at a time: a real step (both branches,
  guidance, solvers), the peak of memory, and whether a second run gives equal bits;
- `large`: the same at 540p, or how much memory was missing;
- `attention`: at both sizes in bf16 and, where FlashAttention-3 is installed, in FP8.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.installed import measured_set, print_set
from magi2 import platform
from magi2.acceptance.floors import MOE, MOE_DIM
from magi2.acceptance.measure import GIB, measure_ceilings, release, timed
from magi2.acceptance.preview_shapes import (
    CONFIG,
    PREVIEW_CLIPS,
    SPARSE,
    Clip,
    clip_layout,
    make_layer,
    make_streams,
    routed_experts,
)
from magi2.acceptance.stack import FEWEST_LAYERS, build, denoise, stack
from magi2.kernels import experts, fp8_experts, routing, sorting
from magi2.kernels.attention import attend_flash, best_attention, flash_library
from magi2.kernels.fp8_rows import quantise_rows
from magi2.kernels.proof import expert_features, fp8_expert_features
from magi2.kernels.settings import expert_settings
from magi2.models.preview.config import BF16, FP8, FP8_EXPERTS, Weights
from magi2.models.preview.fast_ops import lay_out_experts_
from magi2.models.preview.mlp import MultiHeadMoe
from magi2.models.preview.model import PreviewModel
from magi2.parallel.mesh import Mesh
from tools.tiers import REST_GPU_S

FORMATS: tuple[Weights, ...] = (BF16, FP8_EXPERTS, FP8)
LATENT_SIZES = {"272p": (32, 16, 28), "540p": (32, 32, 56)}
EXPERT_SHAPE = (MOE_DIM, MOE.expert_intermediate_size, MOE.num_experts, MOE.top_k)
STEPS = 100
"""Of a preview as published."""
ROUNDS = 2
"""How often the formats take turns: a card that grows hot slows what comes last."""

Row = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    """Measure the sections, write and print their rows."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.one_card", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="write the rows there as JSON; rows of other sections stay")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--weights", choices=FORMATS, default=FP8, help="of the whole stack")
    chosen = parser.parse_args(arguments)
    if platform.current().name == "cpu":
        sys.stdout.write("no accelerator here: nothing to measure\n")
        return 0
    platform.disable_tf32()
    device = platform.device()
    ceilings = str(measure_ceilings(device))
    sys.stdout.write(f"{ceilings}\n")
    release()
    found: dict[str, Any] = {"ceilings": ceilings}
    for section in chosen.only:
        with torch.no_grad():
            found[section] = list(SECTIONS[section](device, chosen.weights))
        release()
        for row in found[section]:
            sys.stdout.write(f"{json.dumps(row)}\n")
        sys.stdout.flush()
        if chosen.out:
            _write(chosen.out, found | {"versions": measured_set(device)})
    print_set(device)
    return 0


def routed(device: torch.device, weights: Weights) -> Iterator[Row]:
    """The expert kernels in turn, on the same tokens and routes."""
    plain, small = (prepared_experts(device, each) for each in (BF16, FP8_EXPERTS))
    for clip in PREVIEW_CLIPS.values():
        x = torch.randn(clip.tokens, MOE.num_heads, MOE_DIM, device=device).bfloat16()
        planes, bias = routing.planes(plain.gate, x.dtype), plain.router.expert_bias_ema
        ids, chosen = routing.route(x, planes, bias, MOE.top_k, MOE.route_norm, MOE.route_scale)
        buffer = x.new_empty(ids.numel(), MOE_DIM)
        calls = {
            BF16: _bf16_experts(plain, x, ids, chosen, buffer),
            FP8_EXPERTS: _fp8_experts(small, x, ids, chosen, buffer),
        }
        spans: dict[Weights, list[float]] = {each: [] for each in calls}
        for _ in range(ROUNDS):
            for each, call in calls.items():
                spans[each].append(timed(call, 9, device=device))
        yield {"part": "experts", "size": clip.name, **_rounded({each: median(of) for each, of in spans.items()})}


def prepared_experts(device: torch.device, weights: Weights) -> MultiHeadMoe:
    """Those of a sparse layer, laid out for their kernel."""
    experts_of = routed_experts(make_layer(SPARSE, device, weights=weights))
    if weights == BF16:
        lay_out_experts_(experts_of)
    return experts_of


def _bf16_experts(moe: MultiHeadMoe, x: Tensor, ids: Tensor, chosen: Tensor, buffer: Tensor) -> Callable[[], Tensor]:
    available = expert_features(*EXPERT_SHAPE, x.dtype, x.device)
    settings = expert_settings(available, MOE_DIM, MOE.expert_intermediate_size, x.element_size())
    plan = sorting.sort_routes(ids, MOE.num_experts, settings.block_rows)
    gate_up = moe.W_gate, moe.W_up
    return partial(experts.expert_rows, x, chosen, plan, gate_up, moe.W_down, available, settings, buffer)


def _fp8_experts(moe: MultiHeadMoe, x: Tensor, ids: Tensor, chosen: Tensor, buffer: Tensor) -> Callable[[], Tensor]:
    """The tokens are quantised beforehand: a pass that writes them does that."""
    available = fp8_expert_features(*EXPERT_SHAPE, x.dtype, x.device)
    settings = fp8_experts.fp8_expert_settings(available, MOE_DIM, MOE.expert_intermediate_size)
    plan = sorting.sort_routes(ids, MOE.num_experts, settings.block_rows)
    parts = fp8_experts.ExpertWeights(*(fp8_experts.Scaled(*part) for part in moe.quantised()))
    tokens = fp8_experts.Scaled(*quantise_rows(x))
    return partial(fp8_experts.fp8_expert_rows, tokens, chosen, plan, parts, available, settings, buffer)


def layers(device: torch.device, weights: Weights) -> Iterator[Row]:
    """Layers by format, and what a clip of 1080p takes by them."""
    best_attention(CONFIG.head_dim, 1, torch.bfloat16, device)
    models = {each: build(Mesh.single(device), stack(CONFIG, FEWEST_LAYERS), weights=each) for each in FORMATS}
    for clip in PREVIEW_CLIPS.values():
        milliseconds = _in_turn(models, clip, device)
        for kind, by_format in milliseconds.items():
            yield {"part": f"{kind}_layer", "size": clip.name, **_rounded(by_format)}
        sparse = len(CONFIG.moe_config.moe_layers)
        dense = CONFIG.num_layers - sparse
        step = {each: sparse * milliseconds["sparse"][each] + dense * milliseconds["dense"][each] for each in FORMATS}
        yield {"part": "step_by_layers", "size": clip.name, **_rounded(step)}
        if clip.name == "540p":
            seconds = {each: STEPS * span / 1e3 + REST_GPU_S for each, span in step.items()}
            yield {"part": "clip_gpu_s", "size": "1080p", "rest_s": REST_GPU_S, **_rounded(seconds)}


def _in_turn(models: dict[Weights, PreviewModel], clip: Clip, device: torch.device) -> dict[str, dict[Weights, float]]:
    """Milliseconds of either kind of layer by format."""
    layout = clip_layout(clip, device)
    streams = make_streams(clip.tokens, device)
    indices = {"dense": 0, "sparse": 1}
    spans: dict[str, dict[Weights, list[float]]] = {kind: {each: [] for each in models} for kind in indices}
    for _ in range(ROUNDS):
        for kind, index in indices.items():
            for each, model in models.items():
                layer = model.block.layers[index]
                spans[kind][each].append(timed(partial(layer, streams, layout), 5, device=device))
    return {kind: {each: median(found) for each, found in of.items()} for kind, of in spans.items()}


def whole(device: torch.device, weights: Weights) -> Iterator[Row]:
    """All layers at 272p, twice."""
    model = build(Mesh.single(device), CONFIG, weights=weights)
    held = platform.memory_stats().allocated / GIB
    platform.reset_peak_memory()
    runs = [denoise(model, LATENT_SIZES["272p"], 5) for _ in range(2)]
    yield {
        "part": "step_of_40_layers",
        "size": "272p",
        "weights": weights,
        "ms": [round(run.watched.step_ms(2), 1) for run in runs],
        "weights_gib": round(held, 2),
        "peak_gib": round(platform.memory_stats().peak / GIB, 2),
        "repeats": runs[0].digest == runs[1].digest,
        "finite": runs[0].is_finite,
    }


def large(device: torch.device, weights: Weights) -> Iterator[Row]:
    """All layers at 540p."""
    model = build(Mesh.single(device), CONFIG, weights=weights)
    platform.reset_peak_memory()
    total = platform.memory_stats().total / GIB
    row = {"part": "step_of_40_layers", "size": "540p", "weights": weights, "card_gib": round(total, 2)}
    try:
        run = denoise(model, LATENT_SIZES["540p"], 2)
    except torch.OutOfMemoryError as error:
        yield row | {"fits": False, "why": str(error).partition(". See")[0]}
        return
    peak = platform.memory_stats().peak / GIB
    yield row | {
        "fits": True,
        "ms": round(run.watched.step_ms(0), 1),
        "peak_gib": round(peak, 2),
        "finite": run.is_finite,
    }


def attention(device: torch.device, weights: Weights) -> Iterator[Row]:
    """Attention in both precisions; scales of one, as for numbers of that size."""
    if flash_library() is None:
        yield {"part": "attention", "why_not": "FlashAttention-3 is not installed"}
        return
    for clip in PREVIEW_CLIPS.values():
        sequences = clip_layout(clip, device).sequences
        where = sequences.bounds, sequences.cu_seqlens, sequences.max_length
        heads = torch.randn(3, clip.tokens, CONFIG.num_heads, CONFIG.head_dim, device=device).bfloat16()
        small = heads.to(torch.float8_e4m3fn)
        calls: dict[str, Callable[[], Tensor]] = {
            "bf16": lambda heads=heads, where=where: attend_flash(*heads, *where)[0],  # type: ignore[misc]
            "fp8": lambda small=small, where=where: attend_flash(*small, *where)[0],  # type: ignore[misc]
        }
        exact = calls["bf16"]().float()
        error = (calls["fp8"]().float() - exact).norm() / exact.norm()
        spans = {name: timed(call, 5, device=device) for name, call in calls.items()}
        yield {"part": "attention", "size": clip.name, **_rounded(spans), "relative_l2": round(float(error), 4)}


SECTIONS: dict[str, Callable[[torch.device, Weights], Iterator[Row]]] = {
    "experts": routed,
    "layers": layers,
    "stack": whole,
    "large": large,
    "attention": attention,
}


def _rounded(values: dict[Any, float]) -> dict[str, float]:
    return {f"{name}": round(value, 2) for name, value in values.items()}


def _write(path: Path, found: dict[str, Any]) -> None:
    """The figures, beside what other runs left there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(kept | found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
