"""Hyper-connections and element-wise kernels against plain torch."""

from __future__ import annotations

import pytest
import torch

from magi2.kernels import mhc, reference, rows
from magi2.kernels.settings import Features, features
from tests.kernels.kernel_checks import TOLERANCE, error, random

GROUPS = {"three": (20, 0, 17), "late": (3, 30, 4)}
OF_FEW = {"three": (3, 0, 2), "late": (1, 3, 1)}
"""Tokens of each modality; few where each has a program of its own."""


def half_layer(device: torch.device, size: int, sets: int) -> tuple:
    norm = random(device, sets * 4 * size, seed=1, scale=0.1)
    phi = random(device, 4 * size, 24, seed=2)
    alphas = tuple(random(device, 1, seed=3 + i).abs() + 0.5 for i in range(3))
    biases = random(device, 4, seed=6), random(device, 4, seed=7), random(device, 4, 4, seed=8)
    return norm, phi, alphas, biases


@pytest.mark.parametrize("descriptors", [False, True])
@pytest.mark.parametrize("sets", [1, 3])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_coefficients_come_from_one_pass(
    dtype: torch.dtype, sets: int, descriptors: bool, device: torch.device
) -> None:
    if descriptors and device.type != "cpu" and not features(device).descriptors:
        pytest.skip("no descriptors here")
    streams = random(device, 37, 4, 128, scale=2).to(dtype)
    norm, phi, alphas, biases = half_layer(device, 128, sets)
    weights = mhc.phi_weights(norm, phi, alphas, biases, dtype)
    available = Features(2**17, descriptors, 2)
    for groups in GROUPS.values():
        out = mhc.coefficients(streams, weights, groups, available)
        expected = reference.coefficients(streams, norm, phi, alphas, biases, groups, torch.float64)
        assert error(out, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("size", [64, 80])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_update_mixes_and_adds(dtype: torch.dtype, size: int, device: torch.device) -> None:
    streams, branch = random(device, 37, 4, size).to(dtype), random(device, 37, size, seed=9).to(dtype)
    current = random(device, 37, 24, seed=10).to(dtype)
    expected = reference.update(streams, current, branch, torch.float64)
    for settings in (mhc.UPDATE_SETTINGS, mhc.MhcSettings(16, 32, 1, 4)):
        assert error(mhc.update(streams, current, branch, settings), expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("groups", OF_FEW)
@pytest.mark.parametrize("sets", [1, 3])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_half_input_is_mixed_then_normalised(dtype: torch.dtype, sets: int, groups: str, device: torch.device) -> None:
    streams = random(device, 5, 4, 48, scale=3).to(dtype)
    current = random(device, 5, 24, seed=1).to(dtype)
    weight = random(device, sets * 48, seed=2)
    mixed = mhc.half_input(streams, current, None, OF_FEW[groups])
    assert error(mixed, reference.half_input(streams, current, torch.float64)) < TOLERANCE[dtype]
    normed = mhc.half_input(streams, current, weight, OF_FEW[groups])
    expected = reference.grouped_rms_norm(mixed.double(), weight, OF_FEW[groups])
    assert error(normed, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_swiglu_reads_and_writes_slices(dtype: torch.dtype, device: torch.device) -> None:
    x = random(device, 9, 200, scale=5).to(dtype)
    out = torch.full((9, 100), torch.nan, dtype=dtype, device=device)
    rows.swiglu7_rows(x[:, 40:], out[:, 10:90])
    pairs = x[:, 40:].double().unflatten(1, (80, 2))
    assert error(out[:, 10:90], reference.swiglu7(pairs[..., 0], pairs[..., 1])) < TOLERANCE[dtype]
    assert bool(out[:, :10].isnan().all() & out[:, 90:].isnan().all())


@pytest.mark.parametrize("heads", [(8, 8), (4, 2), (3, 3)])
@pytest.mark.parametrize("sets", [1, 3])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_heads_are_normalised_rotated_and_packed(
    dtype: torch.dtype, sets: int, heads: tuple[int, int], device: torch.device
) -> None:
    tokens, dim, half = 5, 16, 6
    qkv = random(device, tokens, (heads[0] + 2 * heads[1]) * dim, scale=2).to(dtype)
    weights = [random(device, sets * dim, seed=i, scale=0.2) for i in (1, 2)]
    rope = random(device, tokens, 2 * half, seed=3)
    order = torch.randperm(tokens, generator=torch.Generator().manual_seed(4)).to(device)
    got = rows.packed_heads(qkv, *weights, rope, order, OF_FEW["late"], heads)
    expected = reference.packed_heads(qkv, *weights, rope, order, OF_FEW["late"], heads, torch.float64)
    for actual, wanted in zip(got, expected, strict=True):
        assert error(actual, wanted) < TOLERANCE[dtype]


@pytest.mark.parametrize("heads", [(8, 8), (4, 2), (6, 6)])
def test_heads_and_gates_take_blocks_of_heads(heads: tuple[int, int], device: torch.device) -> None:
    """Laid out for two ranks, the same bits in other places."""
    tokens, dim, half = 5, 16, 6
    qkv = random(device, tokens, (heads[0] + 2 * heads[1]) * dim, scale=2)
    arguments = [random(device, 3 * dim, seed=i, scale=0.2) for i in (1, 2)]
    order = torch.randperm(tokens, generator=torch.Generator().manual_seed(4)).to(device)
    arguments += [random(device, tokens, 2 * half, seed=3), order]
    plain = rows.packed_heads(qkv, *arguments, OF_FEW["late"], heads)
    out = torch.full((2, tokens, (heads[0] + 2 * heads[1]) // 2, dim), torch.nan, device=device)
    rows.head_blocks(qkv, *arguments, OF_FEW["late"], heads, out)
    for rank, block in enumerate(out):
        wanted = torch.cat([kind.chunk(2, dim=1)[rank] for kind in plain], dim=1)
        assert torch.equal(block, wanted)
    logits = random(device, tokens, heads[0], seed=5)
    blocks = torch.stack(plain[0].chunk(2, dim=1))
    assert torch.equal(rows.gate_heads(blocks, logits, order), rows.gate_heads(plain[0], logits, order))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_gate_and_sink_scale_whole_heads(dtype: torch.dtype, device: torch.device) -> None:
    out, logits = random(device, 11, 3, 16).to(dtype), random(device, 11, 3, seed=1).to(dtype)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(2)).to(device)
    gated = rows.gate_heads(out, logits, order)
    assert error(gated, reference.gate_heads(out, logits, order, torch.float64)) < TOLERANCE[dtype]
    log_sums, sinks = random(device, 11, 3, seed=3, scale=4).t(), random(device, 3, seed=4, scale=4)
    expected = reference.fold_sink(out, log_sums, sinks, torch.float64)
    assert error(rows.fold_sink_(out.clone(), log_sums, sinks), expected) < TOLERANCE[dtype]
    both = rows.gate_heads(out, logits, order, (log_sums, sinks))
    assert error(both, reference.gate_heads(expected, logits, order, torch.float64)) < TOLERANCE[dtype]
    in_place = rows.gate_heads(out, logits, None)
    same = torch.arange(11, device=device)
    assert error(in_place, reference.gate_heads(out, logits, same, torch.float64)) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rows_are_normalised_to_another_dtype(dtype: torch.dtype, device: torch.device) -> None:
    x, weight = random(device, 9, 80, scale=3), random(device, 80, seed=1)
    expected = reference.grouped_rms_norm(x.double(), weight, (9, 0, 0))
    assert error(rows.rms_norm_rows(x, weight, dtype), expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_heads_keep_their_order_without_a_permutation(dtype: torch.dtype, device: torch.device) -> None:
    qkv, rope = random(device, 7, 8 * 16, scale=2).to(dtype), random(device, 7, 12, seed=3)
    weights = [random(device, 16, seed=i, scale=0.2) for i in (1, 2)]
    got = tuple(torch.full((7, heads, 16), torch.nan, dtype=dtype, device=device) for heads in (4, 2, 2))
    rows.write_heads(qkv, *weights, rope, got)
    order = torch.arange(7, device=device)
    expected = reference.packed_heads(qkv, *weights, rope, order, (7, 0, 0), (4, 2), torch.float64)
    for actual, wanted in zip(got, expected, strict=True):
        assert error(actual, wanted) < TOLERANCE[dtype]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_sum_is_written_and_normalised_in_one_pass(dtype: torch.dtype, wide: bool, device: torch.device) -> None:
    """A residual of the branch's dtype is rounded to it even where the sum is kept in fp32."""
    x = random(device, 9, 80, scale=3).to(torch.float32 if wide else dtype)
    branch, weight = random(device, 9, 80, seed=1).to(dtype), random(device, 80, seed=2)
    wanted, out = x + branch, x if wide else torch.empty(9, 80, device=device)
    normed = rows.add_norm_rows(x, branch, weight, out)
    assert torch.equal(out, wanted.float())
    assert normed.dtype == dtype
    assert error(normed, reference.rms_norm(wanted.double(), weight)) < TOLERANCE[dtype]
