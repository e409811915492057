"""`python -m benchmarks.specialised [--out FILE]`: the kernels with specialised warps beside the plain ones.

Experts in bf16 (of all heads and of a rank's three) and FP8 at 272p and 540p and window attention at the delivery size:
milliseconds of both in turn, whether their bits are equal, and whether the product would use the specialised one here.
1 where bits differ.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.installed import measured_set, print_set
from magi2 import platform
from magi2.acceptance.measure import timed
from magi2.acceptance.preview_shapes import CONFIG, PREVIEW_CLIPS
from magi2.acceptance.refiner_checks import REFINER, make_context, make_heads, make_refiner
from magi2.kernels import experts, routing, sorting
from magi2.kernels.fp8_experts import (
    FP8_EXPERT_SETTINGS,
    ExpertWeights,
    Scaled,
    fp8_expert_rows,
    fp8_expert_settings,
)
from magi2.kernels.fp8_rows import quantise_rows
from magi2.kernels.proof import expert_features, fp8_expert_features, window_features
from magi2.kernels.refiner_attention import window_attention
from magi2.kernels.settings import Features, expert_settings, features
from magi2.models.refiner.config import RefinerConfig

MOE = CONFIG.moe_config
DIM, WIDTH = CONFIG.hidden_size // MOE.num_heads, MOE.expert_intermediate_size
ROUNDS = 5


@dataclass(frozen=True)
class Comparison:
    """Milliseconds of both kernels, whether three runs of the specialised one equal the plain one, and its use."""

    part: str
    tokens: int
    plain_ms: float
    specialised_ms: float
    equal_bits: bool
    used: bool


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the results there as JSON")
    out = parser.parse_args().out
    accelerator = platform.current()
    device = platform.device(accelerator=accelerator)
    if accelerator.name == "cpu" or not features(device).warpgroups:
        print("no accelerator with warpgroup products here: nothing to compare")
        return 0
    rows = []
    for row in _compare(device):
        print(row, flush=True)
        rows.append(asdict(row))
    print_set(device)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({"versions": measured_set(device), "parts": rows}, indent=1) + "\n")
    return 0 if all(row["equal_bits"] for row in rows) else 1


@torch.no_grad()
def _compare(device: torch.device) -> Iterator[Comparison]:
    found = features(device)
    plain = replace(found, warpgroups=False)
    used = expert_features(DIM, WIDTH, MOE.num_experts, MOE.top_k, torch.bfloat16, device).warpgroups
    whole = [(f"experts {clip.name}", clip.tokens, MOE.num_heads) for clip in PREVIEW_CLIPS.values()]
    shares = [(f"rank's experts {clip.name}", clip.branch, MOE.num_heads // 4) for clip in PREVIEW_CLIPS.values()]
    for part, tokens, heads in whole + shares:
        run = _experts(tokens, heads, device)
        yield _comparison(part, tokens, partial(run, plain), partial(run, found), used)
        torch.cuda.empty_cache()
    if found.fp8:
        for clip in PREVIEW_CLIPS.values():
            low = fp8_expert_features(DIM, WIDTH, MOE.num_experts, MOE.top_k, torch.bfloat16, device).warpgroups
            run = _fp8_experts(clip.tokens, device)
            part = f"FP8 experts {clip.name}"
            yield _comparison(part, clip.tokens, partial(run, plain), partial(run, found), low)
            torch.cuda.empty_cache()
    used = window_features(
        REFINER.num_heads, REFINER.num_query_groups, REFINER.head_dim, torch.bfloat16, device
    ).warpgroups
    attend, tokens = _windows(device)
    yield _comparison("window attention", tokens, partial(attend, plain), partial(attend, found), used)


def _comparison(
    part: str, tokens: int, plain: Callable[[], Tensor], specialised: Callable[[], Tensor], used: bool
) -> Comparison:
    """Both in turn, so that neither has the cooler card."""
    wanted = plain().clone()
    is_equal = all(torch.equal(specialised(), wanted) for _ in range(3))
    spans = [(timed(plain, 1), timed(specialised, 1)) for _ in range(ROUNDS)]
    plain_ms, specialised_ms = (sorted(span)[ROUNDS // 2] for span in zip(*spans, strict=True))
    return Comparison(part, tokens, round(plain_ms, 3), round(specialised_ms, 3), is_equal, used)


def _experts(tokens: int, heads: int, device: torch.device) -> Callable[[Features], Tensor]:
    """The experts of so many heads without their combine, on near-balanced routes."""
    count = heads * MOE.num_experts
    x = torch.randn(tokens, heads, DIM, device=device).bfloat16()
    router = torch.randn(count, DIM, device=device) * DIM**-0.5
    gate, up = (torch.randn(count, DIM, WIDTH, device=device).bfloat16() * DIM**-0.5 for _ in range(2))
    w_down = torch.randn(count, WIDTH, DIM, device=device).bfloat16() * WIDTH**-0.5
    bias = torch.zeros(count, device=device)
    ids, weights = routing.route(x, routing.planes(router, x.dtype), bias, MOE.top_k, True, MOE.route_scale)
    buffer = x.new_empty(ids.numel(), DIM)
    prepared = {}

    def run(available: Features) -> Tensor:
        settings = expert_settings(available, DIM, WIDTH, 2)
        if settings not in prepared:
            plan = sorting.sort_routes(ids, MOE.num_experts, settings.block_rows)
            prepared[settings] = plan, experts.lay_out(gate, up, settings)
        plan, gate_up = prepared[settings]
        return experts.expert_rows(x, weights, plan, gate_up, w_down, available, settings, buffer)

    return run


def _fp8_experts(tokens: int, device: torch.device) -> Callable[[Features], Tensor]:
    """The same with e4m3 tokens and weights."""
    count = MOE.num_heads * MOE.num_experts

    def scaled(*shape: int) -> Scaled:
        return Scaled(*quantise_rows(torch.randn(shape, device=device).bfloat16() * shape[-1] ** -0.5))

    x = torch.randn(tokens, MOE.num_heads, DIM, device=device).bfloat16()
    gate = torch.randn(count, DIM, device=device) * DIM**-0.5
    parts = ExpertWeights(scaled(count, WIDTH, DIM), scaled(count, WIDTH, DIM), scaled(count, DIM, WIDTH))
    bias = torch.zeros(count, device=device)
    ids, weights = routing.route(x, routing.planes(gate, x.dtype), bias, MOE.top_k, True, MOE.route_scale)
    plan = sorting.sort_routes(ids, MOE.num_experts, FP8_EXPERT_SETTINGS[0].block_rows)
    tokens_in, buffer = Scaled(*quantise_rows(x)), x.new_empty(ids.numel(), DIM)

    def run(available: Features) -> Tensor:
        settings = fp8_expert_settings(available, DIM, WIDTH)
        return fp8_expert_rows(tokens_in, weights, plan, parts, available, settings, buffer)

    return run


def _windows(device: torch.device) -> tuple[Callable[[Features], Tensor], int]:
    """Attention of the video's queries, and the number of tokens."""
    model = make_refiner(device, RefinerConfig(num_layers=1, mm_layers=()))
    context = make_context(model)
    q, k, v = make_heads(device)
    video = slice(0, context.grid.num_tokens)

    def run(available: Features) -> Tensor:
        return window_attention(q, k, v, context.plan, available)[video]

    return run, len(q)


if __name__ == "__main__":
    sys.exit(main())
