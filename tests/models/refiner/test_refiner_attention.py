"""Windowed attention: both paths equal attention under a dense mask, in memory linear in the tokens."""

from __future__ import annotations

import os
import shutil

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from magi2.models.refiner.attention import (
    choose_backend,
    flex_attention_windows,
    flex_layout,
    gather_attention,
)
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


@settings(max_examples=6, deadline=None)
@given(axes=st.tuples(axis, axis, axis), tail=st.integers(0, 5))
def test_flex_mask_equals_a_dense_mask(seen_tokens, axes, tail):
    size, block, radius = zip(*axes, strict=True)
    grid = window_grid(size, block, radius, BANDS)
    layout = flex_layout(grid, tail)
    query, key = layout.place_of_video, torch.arange(len(layout.token_of_key))
    seen = layout.mask.mask_mod(torch.tensor(0), torch.tensor(0), query[:, None], key[None])
    places = torch.cat([query, len(grid.starts) * grid.block_volume + torch.arange(tail)])
    assert torch.equal(layout.token_of_key[places], torch.arange(grid.num_tokens + tail))
    assert torch.equal(seen[:, places], seen_tokens(grid, tail)[: grid.num_tokens])
    assert int(seen.sum()) == int(seen_tokens(grid, tail)[: grid.num_tokens].sum())  # nothing of the padding
    blocks = layout.mask.to_dense()[0, 0].bool()
    volume = grid.block_volume
    assert torch.equal(blocks, seen.new_zeros(blocks.shape).index_put((query // volume,), tiles(seen, volume), True))


def tiles(seen, volume):
    return seen.unflatten(1, (-1, volume)).any(-1)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_both_paths_agree_on_partial_blocks(seen_tokens):
    grid = window_grid((3, 5, 6), (2, 2, 4), (1, 1, 1), BANDS)
    q, k, v = random_qkv(grid.num_tokens + 5, 4, 2, 16)
    out = flex_attention_windows(q, k, v, grid, flex_layout(grid, 5), compiled=False)
    assert (out - gather_attention(q, k, v, grid)).abs().max() < 1e-5
    assert (out - dense_reference(q, k, v, seen_tokens(grid, 5))).abs().max() < 1e-5


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("tail", [0, 7])
def test_compiled_flex_agrees_on_the_cpu(tail):
    grid = window_grid((11, 9, 22), *PUBLISHED, BANDS)
    q, k, v = random_qkv(grid.num_tokens + tail, 4, 2, 32)
    out = flex_attention_windows(q, k, v, grid, flex_layout(grid, tail))
    assert (out - gather_attention(q, k, v, grid)).abs().max() < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize(("size", "tail"), [((11, 9, 22), 7), ((15, 30, 41), 300), ((24, 24, 24), 0)])
def test_compiled_flex_agrees_on_an_accelerator(device, size, tail):
    if device.type != "cuda":
        pytest.skip("no CUDA device")
    grid = window_grid(size, *PUBLISHED, BANDS.to(device))
    q, k, v = random_qkv(grid.num_tokens + tail, 8, 2, 128, device, torch.bfloat16)
    assert choose_backend("auto", grid, torch.bfloat16) == "flex"
    layout = flex_layout(grid, tail)
    first, again = (flex_attention_windows(q, k, v, grid, layout) for _ in range(2))
    wanted = gather_attention(q.float(), k.float(), v.float(), grid)
    gathered = gather_attention(q, k, v, grid)
    assert torch.equal(first, again)
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


def test_auto_takes_flex_only_where_it_fits():
    grid = window_grid((8, 4, 4), *PUBLISHED, BANDS)
    assert choose_backend("auto", grid, torch.bfloat16) == "gather"
    assert choose_backend("flex", grid, torch.float32) == "flex"
