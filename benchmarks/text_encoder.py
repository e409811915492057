"""What a prompt takes in the text encoder at full size, with and without kernels for its linear attention.

`python -m benchmarks.text_encoder [--out FILE] [--tokens 600 7000] [--layers N]`: random weights on this device, the
linear layers by transformers' plain torch and by `flash-linear-attention` where that is importable, in one process.
How far the two are from each other is held against plain torch with chunks of half the size, which is another order of
the same sums. Two runs of the command tell by the digests whether another process gives equal bits.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.installed import measured_set
from magi2 import platform
from magi2.acceptance.measure import GIB, settle, timed
from magi2.acceptance.stack import digest_of
from magi2.acceptance.steps.text import random_tower

Rule = Callable[..., Any]
RULE = "torch_chunk_gated_delta_rule"
"""The function of transformers that computes linear attention."""


def main(arguments: list[str] | None = None) -> int:
    """Time all, write and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.text_encoder", description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tokens", type=int, nargs="+", default=[600, 7000])
    parser.add_argument("--layers", type=int, help="of the 62 that run")
    chosen = parser.parse_args(arguments)
    device = platform.device()
    tower, layers, whole = random_tower(device, torch.bfloat16, chosen.layers)
    settle(device)
    held = platform.memory_stats(accelerator=platform.current(device.type)).allocated / GIB
    figures: dict[str, Any] = {
        "layers": layers,
        "layers_of_the_model": whole,
        "weights_gib": round(held, 2),
        "versions": {**measured_set(device), "transformers": version("transformers"), "fla-core": _version()},
        "rows": [],
    }
    for count in chosen.tokens:
        for row in compared(tower, count, rules(), device):
            figures["rows"].append(row)
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()
            if chosen.out:
                chosen.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


def rules() -> dict[str, Rule]:
    """The ways to compute linear attention, plain torch first."""
    from transformers.models.qwen3_5 import modeling_qwen3_5

    chosen = getattr(modeling_qwen3_5, RULE)
    plain = getattr(chosen, "__wrapped__", chosen)
    found = {"torch": plain, "torch, chunks of 32": partial(plain, chunk_size=32)}
    try:
        kernels = import_module("fla.ops.gated_delta_rule")
    except ImportError as error:
        sys.stderr.write(f"without flash-linear-attention: {error}\n")
        return found
    return found | {"flash-linear-attention": kernels.chunk_gated_delta_rule}


@contextmanager
def using(rule: Rule) -> Iterator[None]:
    """Transformers with its linear attention by `rule`."""
    from transformers.models.qwen3_5 import modeling_qwen3_5

    usual = getattr(modeling_qwen3_5, RULE)
    setattr(modeling_qwen3_5, RULE, rule)
    try:
        yield
    finally:
        setattr(modeling_qwen3_5, RULE, usual)


def compared(tower: nn.Module, count: int, ways: dict[str, Rule], device: torch.device) -> Iterator[dict[str, Any]]:
    """A row for each way: milliseconds, seconds of the first call, peak, bits, distance from the first way."""
    generator = torch.Generator().manual_seed(2)
    vocabulary = tower.get_parameter("embed_tokens.weight").shape[0]
    ids = torch.randint(vocabulary, (1, count), generator=generator).to(device)
    accelerator = platform.current(device.type)

    @torch.no_grad()
    def encode() -> Tensor:
        embeds: Tensor = tower(input_ids=ids, use_cache=False).last_hidden_state
        return embeds

    reference: Tensor | None = None
    for name, rule in ways.items():
        with using(rule):
            platform.reset_peak_memory(accelerator=accelerator)
            started = time.perf_counter()
            first = encode()
            settle(device)
            first_s = time.perf_counter() - started
            second = encode()
            span = timed(encode, 3, warm_up=0, device=device)
            peak = platform.memory_stats(accelerator=accelerator).peak / GIB
        reference = first.float() if reference is None else reference
        error = (first.float() - reference).norm() / reference.norm()
        cosine = torch.nn.functional.cosine_similarity(first.float(), reference, dim=-1).min()
        yield {
            "linear_attention": name,
            "tokens": count,
            "ms": round(span, 2),
            "first_call_s": round(first_s, 2),
            "peak_gib": round(peak, 2),
            "repeats": torch.equal(first, second),
            "finite": bool(first.isfinite().all()),
            "relative_l2": float(error),
            "worst_cosine": float(cosine),
            "digest": digest_of([first]),
        }


def _version() -> str:
    try:
        return version("fla-core")
    except PackageNotFoundError:
        return "none"


if __name__ == "__main__":
    sys.exit(main())
