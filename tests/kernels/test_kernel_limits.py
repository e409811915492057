"""Which shapes kernels take: all of the published ones, a named list of others, and an error where they refuse."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from magi2.config.load import load_profile
from magi2.kernels import experts, mhc, reference, refiner_attention, routing, rows, settings, sorting
from magi2.kernels.limits import UnsupportedShapesError
from magi2.kernels.settings import Features
from magi2.models.preview.config import PreviewConfig
from magi2.models.preview.expert_share import expert_share
from magi2.models.preview.kernel_fit import step_refusals
from magi2.models.refiner.config import RefinerConfig
from magi2.models.refiner.fast_ops import step_refusals as refiner_refusals
from tests.kernels.kernel_checks import error, random

ROOT = Path(__file__).parents[2]
H200 = Features(227 * 1024, descriptors=True, processors=132, warpgroups=True)
A100 = Features(163 * 1024, descriptors=False, processors=108)
PUBLISHED, FP32 = PreviewConfig(), torch.float32


def preview(name: str) -> PreviewConfig:
    return load_profile(name, ROOT / "configs").architectures.preview


def refiner(name: str) -> RefinerConfig:
    return load_profile(name, ROOT / "configs").architectures.refiner


@pytest.mark.parametrize("available", [H200, A100], ids=["H200", "A100"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_kernels_take_the_published_shapes_on_every_rank(ranks: int, available: Features) -> None:
    moe = PUBLISHED.moe_config
    for rank in range(ranks):
        share = expert_share(moe.num_heads, moe.num_experts, rank=rank, size=ranks)
        assert not step_refusals(PUBLISHED, torch.bfloat16, available, attention_ranks=ranks, share=share)
    assert not refiner_refusals(RefinerConfig(), torch.bfloat16, available)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_of_the_demo_are_plain_and_nothing_else(dtype: torch.dtype) -> None:
    found = step_refusals(preview("demo"), dtype, H200)
    assert sorted(found) == ["route", "run_experts"]
    assert all("head dim 96 is no power of 2" in reason for reason in found.values())
    assert not refiner_refusals(refiner("demo-refined"), dtype, H200)


@pytest.mark.parametrize("available", [H200, A100], ids=["H200", "A100"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_take_the_tiny_shapes(dtype: torch.dtype, available: Features) -> None:
    assert not step_refusals(preview("tiny"), dtype, available)
    assert not refiner_refusals(refiner("tiny"), dtype, available)


MOE = PUBLISHED.moe_config
THREE, SMALL = replace(MOE, num_heads=3), replace(MOE, num_heads=384, num_experts=8)
STREAMS = ("mhc_coefficients", "mhc_input", "mhc_post")


@pytest.mark.parametrize(
    ("config", "steps", "named"),
    [
        (replace(PUBLISHED, mhc_config=replace(PUBLISHED.mhc_config, num_stream=2)), STREAMS, "2 streams"),
        (replace(PUBLISHED, hidden_size=48, head_dim=16, num_query_groups=3, moe_config=THREE), STREAMS[:1], "192"),
        (replace(PUBLISHED, head_dim=96, num_query_groups=32), ("packed_heads",), "head dim 96"),
        (replace(PUBLISHED, attn_softcap=15.0), ("attend",), "soft cap 15.0"),
        (replace(PUBLISHED, moe_config=replace(MOE, num_heads=16)), ("route", "run_experts"), "head dim 192"),
        (
            replace(PUBLISHED, moe_config=replace(MOE, num_heads=384, num_experts=8)),
            ("route", "run_experts"),
            "head dim 8",
        ),
        (replace(PUBLISHED, moe_config=replace(MOE, num_heads=6)), ("route",), "shared memory"),
        (replace(PUBLISHED, moe_config=replace(MOE, top_k=33)), ("route", "run_experts"), "top_k 33"),
        (replace(PUBLISHED, moe_config=replace(MOE, num_experts=2048)), ("run_experts",), "24576"),
        (replace(PUBLISHED, moe_config=replace(MOE, expert_intermediate_size=24)), ("run_experts",), "width 24"),
    ],
)
def test_odd_previews_keep_the_other_kernels(config: PreviewConfig, steps: tuple[str, ...], named: str) -> None:
    found = step_refusals(config, torch.bfloat16, A100 if named == "shared memory" else H200)
    assert sorted(found) == sorted(steps)
    assert all(named in reason for reason in found.values()), found


@pytest.mark.parametrize(
    ("config", "dtype", "named"),
    [
        (RefinerConfig(head_dim=8, num_query_groups=8), torch.bfloat16, "head dim 8"),
        (RefinerConfig(window_block=(8, 8, 4)), torch.bfloat16, "256"),
        (RefinerConfig(head_dim=512, num_query_groups=8), torch.bfloat16, "shared memory"),
        (RefinerConfig(head_dim=256, num_query_groups=8), FP32, "shared memory"),
    ],
)
def test_odd_refiners_keep_the_other_kernels(config: RefinerConfig, dtype: torch.dtype, named: str) -> None:
    found = refiner_refusals(config, dtype, H200)
    assert list(found) == ["attend"] and named in found["attend"]


def test_models_without_sparse_layers_ask_for_no_experts() -> None:
    dense = replace(PUBLISHED, moe_config=replace(MOE, moe_layers=(), num_heads=16))
    assert not step_refusals(dense, torch.bfloat16, H200)


def test_float64_has_no_kernels_for_products() -> None:
    found = step_refusals(PUBLISHED, torch.float64, H200)
    assert sorted(found) == ["mhc_coefficients", "route", "run_experts"]
    assert all("float64" in reason for reason in found.values())


def launches(function: ast.FunctionDef) -> bool:
    """Whether the function starts a kernel, as in `_some_kernel[grid](...)`."""
    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    names = [call.value for call in calls if isinstance(call, ast.Subscript)]
    return any(isinstance(name, ast.Name) and name.id.endswith("_kernel") for name in names)


def test_every_kernel_is_started_behind_a_refusal() -> None:
    started = 0
    for path in sorted((ROOT / "magi2/kernels").glob("*.py")):
        text = path.read_text()
        for function in ast.parse(text).body:
            if isinstance(function, ast.FunctionDef) and launches(function):
                started += 1
                # The specialised kernels are started by functions that have asked.
                source = text.splitlines()[function.lineno - 1 : function.end_lineno]
                asks = any("limits.require(" in line for line in source) or path.stem.endswith("_specialised")
                assert asks, f"{path.name}: {function.name} starts a kernel unasked"
    assert started >= 12


def plan_of(top_k: int) -> sorting.Plan:
    ids = torch.zeros(1, 2, top_k, dtype=torch.int32)
    return sorting.Plan(*[ids] * 7, ids, 8, 0, 8)


def window(dim: int) -> object:
    q, plan = torch.zeros(4, 2, dim), refiner_attention.WindowPlan(*[torch.zeros(0, 5, dtype=torch.int32)] * 3)
    return refiner_attention.window_attention(q, q, q, plan, H200)


X24, X72 = torch.zeros(2, 1, 24), torch.zeros(2, 72)
REFUSED: dict[str, tuple[str, Callable[[], object]]] = {
    "router, head dim": ("96", lambda: routing.route(torch.zeros(2, 1, 96), torch.zeros(1, 8, 96), None, 2, True, 1.0)),
    "router, small": ("8", lambda: routing.route(torch.zeros(2, 1, 8), torch.zeros(1, 8, 8), None, 2, True, 1.0)),
    "sort": ("33", lambda: sorting.sort_routes(torch.zeros(1, 2, 33, dtype=torch.int32), 64, 16)),
    "experts, head dim": (
        "96",
        lambda: experts.expert_rows(
            torch.zeros(2, 1, 96), None, None, None, torch.zeros(8, 64, 96), H200, settings.EXPERT_SETTINGS[5], None
        ),
    ),
    "experts, width": (
        "24",
        lambda: experts.expert_rows(
            torch.zeros(2, 1, 16), None, None, None, torch.zeros(8, 24, 16), H200, settings.EXPERT_SETTINGS[5], None
        ),
    ),
    "combine": ("96", lambda: experts.combine(torch.zeros(6, 96), plan_of(3), torch.zeros(2, 1, 96))),
    "coefficients, streams": ("2 streams", lambda: mhc.coefficients(torch.zeros(2, 2, 64), None, (2, 0, 0), H200)),
    "coefficients, channels": ("96", lambda: mhc.coefficients(torch.zeros(2, 4, 24), None, (2, 0, 0), A100)),
    "update": ("3 streams", lambda: mhc.update(torch.zeros(2, 3, 16), None, None)),
    "half input": ("3 streams", lambda: mhc.half_input(torch.zeros(2, 3, 16), None, None, (2, 0, 0))),
    "heads": ("head dim 24", lambda: rows.write_heads(X72, torch.zeros(24), None, torch.zeros(2, 18), [X24] * 3)),
    "window, head dim": ("24", lambda: window(24)),
    "window plan": ("129", lambda: refiner_attention.make_plan([(torch.zeros(1), 129, None, None)], X24.device)),
}


@pytest.mark.parametrize("kernel", REFUSED)
def test_kernels_say_what_they_do_not_take(kernel: str) -> None:
    value, start = REFUSED[kernel]
    with pytest.raises(UnsupportedShapesError, match=rf"^kernel \w+: .*\b{value}\b"):
        start()


def test_demo_heads_and_streams_equal_their_references(device: torch.device) -> None:
    """Three heads of 64 and streams of 192 channels, for which nothing is filled up elsewhere."""
    config, tokens, groups = preview("demo"), 5, (3, 0, 2)
    size, dim, heads = config.hidden_size, config.head_dim, (config.num_heads, config.num_query_groups)
    streams = random(device, tokens, 4, size, scale=2)
    norm, phi = random(device, 3 * 4 * size, seed=1, scale=0.1), random(device, 4 * size, 24, seed=2)
    alphas = tuple(random(device, 1, seed=3 + i).abs() for i in range(3))
    biases = random(device, 4, seed=6), random(device, 4, seed=7), random(device, 4, 4, seed=8)
    weights = mhc.phi_weights(norm, phi, alphas, biases, FP32)
    current = mhc.coefficients(streams, weights, groups, settings.features(device))
    wanted = reference.coefficients(streams, norm, phi, alphas, biases, groups, torch.float64)
    assert error(current, wanted) < 1e-5
    branch = random(device, tokens, size, seed=9)
    updated = mhc.update(streams, current, branch)
    assert error(updated, reference.update(streams, current, branch, torch.float64)) < 1e-5
    qkv = random(device, tokens, (heads[0] + 2 * heads[1]) * dim, seed=10)
    norms = [random(device, 3 * dim, seed=i, scale=0.2) for i in (11, 12)]
    rope, order = random(device, tokens, 6 * (dim // 8), seed=13), torch.arange(tokens - 1, -1, -1, device=device)
    found = rows.packed_heads(qkv, *norms, rope, order, groups, heads)
    for part, same in zip(
        found, reference.packed_heads(qkv, *norms, rope, order, groups, heads, torch.float64), strict=True
    ):
        assert error(part, same) < 1e-5
