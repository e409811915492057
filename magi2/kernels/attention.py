"""Attention from the fastest library kernel at hand, with what it takes to fold in sinks afterwards.

Both kernels give the logarithm of the softmax's sum, and one more logit without a value only scales the output by
exp(l) / (exp(l) + exp(z)): see `rows.fold_sink_`, and `rows.gate_heads`, which does it in the same pass.
"""

# Shapes: N tokens, H query heads, G key/value heads, d head dim, P sequences

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise

import torch
from torch import Tensor

from magi2.kernels.chosen import choose
from magi2.kernels.rows import fold_sink_

logger = logging.getLogger(__name__)

# Modules that offer FlashAttention-3's interface: the vendor's own name, and that of the fa3-fwd wheel.
_FLASH_MODULES = ("flash_attn_interface", "fa3_fwd_interface")
_FLASH_DISTRIBUTIONS = ("flash_attn_3", "fa3-fwd")

_DTYPES = (torch.bfloat16, torch.float16)  # neither computes in fp32, and cuDNN does not say so
Attend = Callable[[Tensor, Tensor, Tensor, Sequence[int], Tensor, int], tuple[Tensor, Tensor]]


@cache
def _flash_function() -> Callable[..., tuple[Tensor, Tensor]] | None:
    for name in _FLASH_MODULES:
        try:
            return importlib.import_module(name).flash_attn_varlen_func
        except (ImportError, AttributeError, OSError):
            continue
    return None


def flash_library() -> str | None:
    """Distribution and version of the installed FlashAttention-3, None when there is none; imports nothing."""
    for distribution in _FLASH_DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            return f"{distribution} {version(distribution)}"
    return None


def attend_flash(
    q: Tensor, k: Tensor, v: Tensor, bounds: Sequence[int], cu_seqlens: Tensor, max_length: int
) -> tuple[Tensor, Tensor]:
    """Attention within each sequence by FlashAttention-3, without sinks: [N, H, d] for q [N, H, d], k and v [N, G, d].

    With it the logarithms of the softmax's sums, [H, N] fp32 of any strides.
    """
    function = _flash_function()
    if function is None:
        raise ImportError(f"none of {', '.join(_FLASH_MODULES)} is installed")
    lengths = (cu_seqlens, cu_seqlens, max_length, max_length)
    return function(q, k, v, *lengths, softmax_scale=q.shape[-1] ** -0.5, return_attn_probs=True)


def attend_cudnn(
    q: Tensor, k: Tensor, v: Tensor, bounds: Sequence[int], cu_seqlens: Tensor, max_length: int
) -> tuple[Tensor, Tensor]:
    """The same by cuDNN, one call per sequence, or one for all when they are equally long."""
    lengths = [stop - start for start, stop in pairwise(bounds)]
    if len(set(lengths)) == 1:
        lengths = [q.shape[0]]
        shape = (len(bounds) - 1, max_length)
    else:
        shape = (1, -1)
    outputs, sums = [], []
    for parts in zip(*(tensor.split(lengths) for tensor in (q, k, v)), strict=True):
        batch = [part.unflatten(0, shape).transpose(1, 2) for part in parts]
        out, log_sums = torch.ops.aten._scaled_dot_product_cudnn_attention(*batch, None, True)[:2]
        outputs.append(out.transpose(1, 2).flatten(0, 1))
        sums.append(log_sums.flatten(2).transpose(0, 1).flatten(1))
    if len(outputs) == 1:
        return outputs[0].contiguous(), sums[0]
    return torch.cat(outputs), torch.cat(sums, dim=1)


_LIBRARIES: dict[Attend, Callable[[], str]] = {
    attend_flash: lambda: flash_library() or "FlashAttention-3",
    attend_cudnn: lambda: f"cuDNN {torch.backends.cudnn.version()}",
}


@cache
def best_attention(head_dim: int, shared: int, dtype: torch.dtype, device: torch.device) -> Attend | None:
    """The fastest of the two that runs here with `shared` query heads to a key head, tried on a few tokens, or None.

    Waits for the device: ask once before the steps.
    """
    if dtype not in _DTYPES:
        return None
    for attend in (attend_flash, attend_cudnn):
        try:
            if _is_right(attend, head_dim, shared, dtype, device):
                logger.info("attention by %s", attend.__name__)
                choose("attention", _LIBRARIES[attend]())
                return attend
            logger.warning("%s gives wrong values here", attend.__name__)
        except (ImportError, RuntimeError) as error:
            logger.info("no attention by %s: %s", attend.__name__, error)
    return None


def attention_refusal(head_dim: int, shared: int, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why `best_attention` has none for such heads; None when it has one. Waits for the device the first time."""
    if dtype not in _DTYPES:
        return f"{dtype} is none of {', '.join(map(str, _DTYPES))}"
    if best_attention(head_dim, shared, dtype, device) is None:
        return f"neither FlashAttention-3 nor cuDNN attention takes head dim {head_dim} here"
    return None


def _is_right(attend: Attend, head_dim: int, shared: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether two short sequences come out as by the plain softmax."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(256, shared + 2, head_dim, generator=generator).to(device, dtype).split([shared, 1, 1], dim=1)
    cu_seqlens = torch.tensor([0, 128, 256], dtype=torch.int32, device=device)
    arguments = q.contiguous(), k.contiguous(), v.contiguous(), (0, 128, 256), cu_seqlens, 128
    out = fold_sink_(*attend(*arguments), torch.zeros(shared, device=device))
    for rows in (slice(0, 128), slice(128, 256)):
        scores = (q[rows].float().transpose(0, 1) @ k[rows, 0].float().t() * head_dim**-0.5).exp()
        wanted = scores @ v[rows, 0].float() / (scores.sum(-1, keepdim=True) + 1)
        if not bool((out[rows].float().transpose(0, 1) - wanted).norm() < 2e-2 * wanted.norm()):
            return False
    return True
