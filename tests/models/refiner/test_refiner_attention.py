"""Windowed attention: both paths equal attention under a dense mask, in memory linear in the tokens."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from magi2.kernels.refiner_attention import (
    WINDOW_SETTINGS,
    WINDOW_SETTINGS_PLAIN,
    window_attention,
    window_settings,
)
from magi2.kernels.settings import Features, features
from magi2.models.refiner.attention import gather_attention
from magi2.models.refiner.fast_ops import fast_ops
from magi2.models.refiner.windows import window_grid

BANDS = 10000.0 ** -(torch.arange(4) / 4)
PUBLISHED = ((8, 4, 4), (2, 2, 2))


def dense_reference(q, k, v, mask):
    q, k, v = (tensor.double().transpose(0, 1) for tensor in (q, k, v))
    repeat = len(q) // len(k)
    k, v = k.repeat_interleave(repeat, 0), v.repeat_interleave(repeat, 0)
    return F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask)[0].transpose(0, 1)


def random_qkv(tokens, heads, groups, dim, device="cpu", dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = ((tokens, heads, dim), (tokens, groups, dim), (tokens, groups, dim))
    return tuple(torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)


axis = st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(0, 2))


@settings(max_examples=40, deadline=None)
@given(axes=st.tuples(axis, axis, axis), tail=st.integers(0, 5), step=st.sampled_from([1, 4096, 2**30]))
def test_gathered_windows_equal_a_dense_mask(seen_tokens, axes, tail, step):
    size, block, radius = zip(*axes, strict=True)
    grid = window_grid(size, block, radius, BANDS)
    q, k, v = random_qkv(grid.num_tokens + tail, 4, 2, 8)
    out = gather_attention(q, k, v, grid, max_bytes=step)
    wanted = dense_reference(q, k, v, seen_tokens(grid, tail))
    assert out.shape == q.shape
    assert (out - wanted).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("size", "block", "radius", "tail"),
    [
        ((3, 3, 3), (2, 2, 1), (0, 1, 1), 5),
        ((9, 5, 4), (8, 4, 4), (1, 1, 1), 65),
        ((3, 3, 3), (2, 2, 1), (0, 1, 1), 130),
        ((3, 3, 3), (8, 4, 4), (2, 2, 2), 0),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_kernel_walks_the_same_windows(device, dtype, size, block, radius, tail):
    grid = window_grid(size, block, radius, BANDS.to(device))
    q, k, v = random_qkv(grid.num_tokens + tail, 2, 1, 16, device, dtype)
    ops = fast_ops()
    wanted = gather_attention(q.double(), k.double(), v.double(), grid)
    out = ops.attend(q, k, v, grid, ops.plan(grid, tail))
    assert (out - wanted).norm() < (1e-5 if dtype == torch.float32 else 1e-3) * wanted.norm()


def test_kernel_takes_video_queries_alone(device):
    grid = window_grid((3, 4, 4), (2, 2, 4), (1, 1, 1), BANDS.to(device))
    q, k, v = random_qkv(grid.num_tokens + 5, 2, 1, 16, device)
    ops = fast_ops()
    out = ops.attend(q[: grid.num_tokens], k, v, grid, ops.plan(grid, 5))
    assert (out - gather_attention(q, k, v, grid)[: grid.num_tokens]).abs().max() < 1e-5


def test_kernel_settings_follow_the_shared_memory():
    for kibibytes, descriptors, itemsize, wanted in (
        (227, True, 2, WINDOW_SETTINGS[0]),
        (100, True, 2, WINDOW_SETTINGS[1]),
        (64, True, 2, WINDOW_SETTINGS_PLAIN),
        (227, False, 2, WINDOW_SETTINGS_PLAIN),
        (227, True, 4, WINDOW_SETTINGS_PLAIN),
    ):
        assert window_settings(Features(kibibytes * 1024, descriptors, 132), 128, itemsize) == wanted


@pytest.mark.gpu
@pytest.mark.parametrize(("size", "tail"), [((11, 9, 22), 7), ((15, 30, 41), 300), ((24, 24, 24), 0)])
def test_kernel_agrees_in_bf16_on_an_accelerator(device, size, tail):
    if device.type != "cuda":
        pytest.skip("no CUDA device")
    grid = window_grid(size, *PUBLISHED, BANDS.to(device))
    q, k, v = random_qkv(grid.num_tokens + tail, 8, 2, 128, device, torch.bfloat16)
    ops = fast_ops()
    plan = ops.plan(grid, tail)
    first, again = (ops.attend(q, k, v, grid, plan) for _ in range(2))
    portable = window_attention(q, k, v, plan, features(device), WINDOW_SETTINGS[0])
    wanted = gather_attention(q.float(), k.float(), v.float(), grid)
    gathered = gather_attention(q, k, v, grid)
    assert torch.equal(first, again)
    assert torch.equal(first, portable)
    assert (first.float() - wanted).norm() / wanted.norm() < 5e-3
    assert (gathered.float() - wanted).norm() / wanted.norm() < 5e-3


class LargestTensor(TorchDispatchMode):
    """Remembers the largest tensor that any operation made."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("length", [24, 48])
def test_gathered_windows_need_memory_linear_in_tokens(length):
    grid = window_grid((16, 24, length), *PUBLISHED, BANDS)
    q, k, v = random_qkv(grid.num_tokens + 40, 2, 1, 8)
    budget = 2**20
    with LargestTensor() as largest:
        gather_attention(q, k, v, grid, max_bytes=budget)
    # A mask of one byte per token pair would take 85 MB (length 24) and 340 MB (length 48).
    assert largest.numel <= max(budget, 2 * q.numel() * q.element_size())
