"""Whether the kernels with specialised warps take the place of the plain ones: wherever they give the same bits.

Their language is experimental: a version of Triton may not compile them, or compile them wrongly. So each is run once,
on a few rows of the shapes that it is wanted for, beside the plain kernel.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
import triton
from torch import Tensor

from magi2.kernels import experts, fp8_experts, fp8_rows, refiner_attention, sorting
from magi2.kernels.chosen import choose
from magi2.kernels.settings import ExpertSettings, Features, expert_settings, features

logger = logging.getLogger(__name__)

EXPERTS, E4M3_EXPERTS, WINDOWS = "experts", "FP8 experts", "window attention"
PLAIN, SPECIALISED = "plain", "specialised"
_TOKENS = 150  # of one full tile and a part of the next


@cache
def expert_features(
    head_dim: int, width: int, num_experts: int, top_k: int, dtype: torch.dtype, device: torch.device
) -> Features:
    """Features of `device`, whose warpgroups are left out where they would change the bits of such experts.

    Waits for the device the first time.
    """
    found = features(device)
    chosen = expert_settings(found, head_dim, width, dtype.itemsize)
    if not chosen.specialised:
        choose(EXPERTS, PLAIN)
        return found
    plain = replace(found, warpgroups=False)
    settings = expert_settings(plain, head_dim, width, dtype.itemsize)
    run = _ExpertRun(head_dim, width, num_experts, top_k, dtype, device)
    return found if _agree(EXPERTS, lambda: run(plain, settings), lambda: run(found, chosen)) else plain


@cache
def fp8_expert_features(
    head_dim: int, width: int, num_experts: int, top_k: int, dtype: torch.dtype, device: torch.device
) -> Features:
    """The same for experts with e4m3 tokens and weights, whose rows are `dtype`."""
    found = features(device)
    chosen = fp8_experts.fp8_expert_settings(found, head_dim, width)
    if not chosen.specialised:
        choose(E4M3_EXPERTS, PLAIN)
        return found
    plain = replace(found, warpgroups=False)
    settings = fp8_experts.fp8_expert_settings(plain, head_dim, width)
    run = _Fp8ExpertRun(head_dim, width, num_experts, top_k, dtype, device)
    return found if _agree(E4M3_EXPERTS, lambda: run(plain, settings), lambda: run(found, chosen)) else plain


@cache
def window_features(num_heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> Features:
    """The same for window attention."""
    found = features(device)
    if refiner_attention.specialised_refusal(head_dim, dtype, found):
        choose(WINDOWS, PLAIN)
        return found
    plain = replace(found, warpgroups=False)
    run = _WindowRun(num_heads, kv_heads, head_dim, dtype, device)
    return found if _agree(WINDOWS, lambda: run(plain), lambda: run(found)) else plain


def _agree(step: str, plain: Callable[[], Tensor], specialised: Callable[[], Tensor]) -> bool:
    """Whether both give the same bits; a warning with the reason where they do not."""
    wanted = plain()
    try:
        is_equal = torch.equal(specialised(), wanted)
    except Exception as error:  # whatever the compiler of some version raises: the plain kernel takes over, and says so
        reason = f"{type(error).__name__}: {error}"[:500]
    else:
        reason = None if is_equal else "it gives other bits than the plain one"
    if reason:
        logger.warning("%s: no specialised kernel under Triton %s: %s", step, triton.__version__, reason)
    choose(step, PLAIN if reason else SPECIALISED)
    return reason is None


class _ExpertRun:
    """Rows of one head's experts, by any settings: some experts have no token, and one has more than a tile."""

    def __init__(
        self, head_dim: int, width: int, num_experts: int, top_k: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device=device).to(dtype)

        generator = torch.Generator(device).manual_seed(0)
        self._x = normal(_TOKENS, 1, head_dim)
        self._gate, self._up = (normal(num_experts, head_dim, width) * head_dim**-0.5 for _ in range(2))
        self._w_down = normal(num_experts, width, head_dim) * width**-0.5
        self._ids, self._weights = _routes(num_experts, top_k, generator, device)

    def __call__(self, available: Features, settings: ExpertSettings) -> Tensor:
        plan = sorting.sort_routes(self._ids, len(self._w_down), settings.block_rows)
        rows = self._x.new_zeros(self._ids.numel(), self._x.shape[2])
        gate_up = experts.lay_out(self._gate, self._up, settings)
        return experts.expert_rows(self._x, self._weights, plan, gate_up, self._w_down, available, settings, rows)


class _Fp8ExpertRun:
    """The same rows with e4m3 tokens and weights."""

    def __init__(
        self, head_dim: int, width: int, num_experts: int, top_k: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        def scaled(*shape: int) -> fp8_experts.Scaled:
            values = torch.randn(shape, generator=generator, device=device)
            return fp8_experts.Scaled(*fp8_rows.quantise_rows(values * shape[-1] ** -0.5))

        generator = torch.Generator(device).manual_seed(0)
        self._x = scaled(_TOKENS, 1, head_dim)
        self._parts = fp8_experts.ExpertWeights(
            scaled(num_experts, width, head_dim),
            scaled(num_experts, width, head_dim),
            scaled(num_experts, head_dim, width),
        )
        self._ids, self._weights = _routes(num_experts, top_k, generator, device)
        self._head_dim, self._dtype = head_dim, dtype

    def __call__(self, available: Features, settings: fp8_experts.Fp8ExpertSettings) -> Tensor:
        plan = sorting.sort_routes(self._ids, len(self._parts.down.values), settings.block_rows)
        rows = torch.zeros(self._ids.numel(), self._head_dim, dtype=self._dtype, device=self._ids.device)
        return fp8_experts.fp8_expert_rows(self._x, self._weights, plan, self._parts, available, settings, rows)


def _routes(num_experts: int, top_k: int, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and weights [1, N, K]; every token goes to the first expert."""
    scores = torch.rand(1, _TOKENS, num_experts, generator=generator, device=device)
    scores[..., 0] += 1
    return scores.topk(top_k).indices.int(), torch.rand(1, _TOKENS, top_k, generator=generator, device=device)


class _WindowRun:
    """Tiles of queries that see full blocks of keys, a partial one, or both."""

    def __init__(self, num_heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        tile = refiner_attention.TILE
        keys = 5 * tile
        generator = torch.Generator(device).manual_seed(0)
        sizes = (num_heads, kv_heads, kv_heads)
        self._heads = [torch.randn(keys, n, head_dim, generator=generator, device=device).to(dtype) for n in sizes]

        def numbers(*values: int) -> Tensor:
            return torch.tensor(values, device=device)

        groups = (
            (numbers(0, tile), tile, numbers(0, tile, 3 * tile).expand(2, 3), numbers(tile, 77, tile)),
            (numbers(2 * tile), 50, numbers(4 * tile).expand(1, 1), numbers(9)),
        )
        self._plan = refiner_attention.make_plan(groups, device)

    def __call__(self, available: Features) -> Tensor:
        rows = 2 * refiner_attention.TILE + 50  # those that the tiles hold
        return refiner_attention.window_attention(*self._heads, self._plan, available)[:rows]
