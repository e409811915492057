"""How far FP8 weights and products move what a layer computes: `python -m benchmarks.fp8_error [--out FILE]`.

A stack with random weights, layer by layer, plain torch on this device. The same weights as bf16, with the routed
experts in FP8, and with all large products in FP8, each against fp32 arithmetic on the bf16 weights:

- one layer at a time: every format gets the fp32 run's streams and its routes. Relative L2 of what attention, MLP and
  the layer give, and the share of routes that the format would have chosen otherwise;
- the whole depth: every format goes on from its own streams by its own routes. Relative L2 of the streams.

Half the tokens are normal numbers; in the other half 0.1 % of the channels are 20 times the size at every layer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.installed import measured_set
from magi2 import platform
from magi2.acceptance.preview_shapes import CONFIG, make_layer, make_layout, make_streams
from magi2.kernels import reference
from magi2.models.checkpoint import TensorMapping, load_module
from magi2.models.preview.config import BF16, FP8, FP8_EXPERTS, PreviewConfig, Weights
from magi2.models.preview.layer import Layer
from magi2.models.preview.layout import ClipLayout
from magi2.models.preview.mlp import SparseMlp
from magi2.models.preview.moe import Routes, route
from magi2.models.preview.ops import PreviewOps
from magi2.models.preview.quantised import E4M3
from magi2.models.preview.quantised_source import QuantisedSource

FORMATS: tuple[Weights, ...] = (BF16, FP8_EXPERTS, FP8)
DATA = ("normal", "outliers")
OUTLIER_SHARE, OUTLIER_SIZE = 1e-3, 20.0
FROM_NORMED = "from_normed"


def main(arguments: list[str] | None = None) -> int:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fp8_error", description=__doc__)
    parser.add_argument("--out", type=Path, help="write the figures there as JSON")
    parser.add_argument("--layers", type=int, default=CONFIG.num_layers)
    parser.add_argument("--tokens", type=int, default=1024, help="of either kind of data")
    chosen = parser.parse_args(arguments)
    platform.disable_tf32()
    device = platform.device()
    figures = measured(CONFIG, chosen.layers, chosen.tokens, device) | {"versions": measured_set(device)}
    if chosen.out:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(figures["mean"], indent=1) + "\n")
    return 0


def measured(config: PreviewConfig, layers: int, tokens: int, device: torch.device) -> dict[str, Any]:
    """The figures of the first `layers` layers with so many tokens of either kind of data.

    `layers` has a row for each layer, kind of data and format, `mean` the mean of each kind of layer.
    """
    torch.manual_seed(3)
    counts = (tokens - 2 * (tokens // 8), tokens // 8, tokens // 8)
    layout = make_layout(tuple(accumulate([tokens] * 2, initial=0)), [counts, counts], device, config)
    is_outlier = layout.to_grouped >= tokens
    start = make_streams(2 * tokens, device, config)
    streams: dict[str, Tensor] = {"fp32": start.float(), **dict.fromkeys(FORMATS, start)}
    rows = []
    with torch.no_grad():
        for index in range(layers):
            sys.stderr.write(f"layer {index}\n")
            streams = _with_outliers(streams, is_outlier)
            found = _one_layer(config, index, streams, layout)
            streams = {name: each.on for name, each in found.items()}
            rows += list(_rows(index, config, found, is_outlier))
    return {"layers": rows, "mean": list(_means(rows)), "tokens": tokens}


@dataclass
class _Found:
    """What a format makes of the fp32 run's streams and routes, `on` what it makes of its own by its own."""

    parts: dict[str, Tensor] = field(default_factory=dict)
    flipped: Tensor | None = None
    on: Tensor = field(default_factory=lambda: torch.empty(0))


def _one_layer(config: PreviewConfig, index: int, streams: dict[str, Tensor], layout: ClipLayout) -> dict[str, _Found]:
    source = make_layer(index, layout.rope.device, config)
    for name, parameter in source.named_parameters():
        if "alpha" in name:
            parameter.fill_(config.mhc_config.alpha_init)  # larger ones saturate the hyper-connections
    exact = _as(source, config, index, BF16, torch.float32)
    routes = _Routes()
    found = {"fp32": _Found()}
    with routes.of(exact, chosen=None):
        found["fp32"].parts = _parts(exact, streams["fp32"], layout)
        found["fp32"].on = found["fp32"].parts["layer"]
    del exact
    truth = routes.last
    for weights in FORMATS:
        layer = source if weights == BF16 else _as(source, config, index, weights, torch.bfloat16)
        at = found[weights] = _Found()
        with routes.of(layer, chosen=truth):
            at.parts = _parts(layer, streams["fp32"].bfloat16(), layout)
        if truth is not None and routes.last is not None:
            at.flipped = _flipped(routes.last, truth)
        at.on = layer(streams[weights], layout)
    return found


def _as(source: Layer, config: PreviewConfig, index: int, weights: Weights, dtype: torch.dtype) -> Layer:
    """The layer with its weights in another format."""
    device = source.mhc_norm.weight.device
    with torch.device("meta"):
        layer = Layer(config, index, dtype=dtype, weights=weights)
    wanted = [name for name, tensor in layer.state_dict().items() if tensor.dtype == E4M3]
    tensors = TensorMapping(source.state_dict(), path=Path(f"layer {index}"))
    load_module(layer, QuantisedSource(tensors, wanted, device), device=device)
    return layer.requires_grad_(False).eval()


class _Routes:
    """What a layer's router chooses, and what it is made to say it chose."""

    def __init__(self) -> None:
        self.last: Routes | None = None

    @contextmanager
    def of(self, layer: Layer, *, chosen: Routes | None) -> Iterator[None]:
        """Keep the routes of `layer`, and let its experts follow `chosen` instead where that is given.

        Experts of a layer in fp32 are computed one after the other: libraries have no grouped product for them.
        """

        def choose(*arguments: Any) -> Routes:
            self.last = route(*arguments)
            return chosen or self.last

        if not isinstance(layer.mlp, SparseMlp):
            self.last = None
            yield
            return
        moe = layer.mlp.moe_mlp
        usual = moe.ops
        moe.ops = replace(PreviewOps(), route=choose)
        if moe.gate.device.type != "cpu" and moe.W_gate.dtype == torch.float32:
            moe.ops = replace(moe.ops, run_experts=_exact_experts)
        try:
            yield
        finally:
            moe.ops = usual


def _exact_experts(x: Tensor, routes: Routes, w_gate: Tensor, w_up: Tensor, w_down: Tensor, share: object) -> Tensor:
    return reference.experts(x, routes.expert_ids, routes.weights, w_gate, w_up, w_down, torch.float32)


def _parts(layer: Layer, streams: Tensor, layout: ClipLayout) -> dict[str, Tensor]:
    """What attention, MLP and the whole layer give."""
    found: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(function: Any) -> Any:
            def call(*arguments: Any) -> Tensor:
                found[name] = function(*arguments)
                return found[name]

            return call

        return hook

    owners: dict[str, nn.Module] = {"attention": layer.attention, "mlp": layer.mlp}
    for name, owner in owners.items():
        setattr(owner, FROM_NORMED, keep(name)(owner.from_normed))
    try:
        found["layer"] = layer(streams, layout)
    finally:
        for owner in owners.values():
            delattr(owner, FROM_NORMED)
    return found


def _flipped(chosen: Routes, wanted: Routes) -> Tensor:
    """By token, the share [N] of routes to an expert that the other does not go to."""
    same = chosen.expert_ids.unsqueeze(-1) == wanted.expert_ids.unsqueeze(-2)
    return 1 - same.any(-1).float().mean(dim=(0, 2))


def _with_outliers(streams: dict[str, Tensor], is_outlier: Tensor) -> dict[str, Tensor]:
    """The streams with the first channels of half the tokens at 20 times the size of the others, by one factor."""
    exact = streams["fp32"][is_outlier]
    some = max(1, round(OUTLIER_SHARE * exact.shape[-1]))
    factor = OUTLIER_SIZE * exact[..., some:].square().mean().sqrt() / exact[..., :some].square().mean().sqrt()
    given = {}
    for name, each in streams.items():
        given[name] = each.clone()
        given[name][is_outlier, :, :some] = (each[is_outlier, :, :some].float() * factor).to(each.dtype)
    return given


def _rows(index: int, config: PreviewConfig, found: dict[str, _Found], is_outlier: Tensor) -> Iterator[dict[str, Any]]:
    kind = "sparse" if index in config.moe_config.moe_layers else "dense"
    for data, rows in zip(DATA, (~is_outlier, is_outlier), strict=True):
        for weights in FORMATS:
            at, exact = found[weights], found["fp32"]
            errors = {name: _error(part[rows], exact.parts[name][rows]) for name, part in at.parts.items()}
            flipped = {} if at.flipped is None else {"routes_flipped": float(at.flipped[rows].mean())}
            depth = {"from_its_own_streams": _error(at.on[rows], exact.on[rows])}
            yield {"index": index, "kind": kind, "data": data, "weights": weights, **errors, **flipped, **depth}


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found.float() - exact).norm() / exact.norm())


def _means(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """By kind of layer, data and format; the last layer's streams are as far as the whole depth moves them."""
    for kind in ("sparse", "dense"):
        for data in DATA:
            for weights in FORMATS:
                some = [row for row in rows if (row["kind"], row["data"], row["weights"]) == (kind, data, weights)]
                if not some:
                    continue
                names = [name for name in ("attention", "mlp", "layer", "routes_flipped") if name in some[0]]
                means: dict[str, Any] = {name: round(mean(row[name] for row in some), 5) for name in names}
                last = {"after_the_last": round(some[-1]["from_its_own_streams"], 5)}
                yield {"kind": kind, "data": data, "weights": weights, "layers": len(some), **means, **last}


if __name__ == "__main__":
    sys.exit(main())
