"""A step of the refiner, with the prompt and with the negative prompt, under the layout; twice with equal bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from magi2 import platform
from magi2.acceptance.building import built
from magi2.acceptance.measure import GIB, mark, release, settle
from magi2.acceptance.plan import Difference, Figure, Found, NotRunError
from magi2.acceptance.refiner_shapes import random_weights
from magi2.acceptance.site import Site, Size
from magi2.acceptance.stack import digest_of
from magi2.models.refiner.config import RefinerConfig
from magi2.models.refiner.context import Refiner
from magi2.models.refiner.loading import load_refiner
from magi2.models.refiner.parallelize import ParallelRefiner
from magi2.sampling.refine import RefinerVelocityPair

FEWEST = 3
"""Layers: one with weights for each modality at both ends, and one that is shared."""


def run(site: Site) -> Iterator[Found]:
    """At each size that the profiles ask for."""
    if not site.refined_sizes:
        raise NotRunError("none of the profiles has a refiner")
    whole = site.profiles[0].architectures.refiner
    config = fewer_layers(whole, site.options.layers)
    model = yield from built(site, config.num_layers, whole.num_layers, lambda: _model(site, config, whole))
    for name, size in site.refined_sizes.items():
        yield from _step(site, model, config, whole, name, size)
        release()


def fewer_layers(config: RefinerConfig, asked: int | None) -> RefinerConfig:
    """The architecture with at most so many layers."""
    layers = max(FEWEST, min(config.num_layers, asked or config.num_layers))
    if layers >= config.num_layers:
        return config
    return replace(config, num_layers=layers, mm_layers=(0, layers - 1))


def _model(site: Site, config: RefinerConfig, whole: RefinerConfig) -> tuple[Refiner, str]:
    """The given weights where all layers are asked for, else random ones; and which these are."""
    weights = site.weights("refiner") if config == whole else None
    if weights is not None:
        folder = weights.folder("refiner")
        return load_refiner(folder, config, device=site.device, compute_dtype=site.dtype, mesh=site.ranks), "given"
    return random_refiner(site, config), "random"


def random_refiner(site: Site, config: RefinerConfig) -> Refiner:
    """A refiner whose weights are equal on all ranks, with kernels where there are some."""
    torch.manual_seed(1)
    model = random_weights(site.device, config, site.dtype)
    if site.accelerator.triton:
        # Here: a CPU machine need not have Triton.
        from magi2.models.refiner.fast_ops import use_fast_ops

        use_fast_ops(model)
    return model if site.ranks.layout.num_ranks == 1 else ParallelRefiner(model, site.ranks)


@torch.no_grad()
def _step(
    site: Site, model: Refiner, config: RefinerConfig, whole: RefinerConfig, name: str, size: Size
) -> Iterator[Found]:
    torch.manual_seed(2)
    latents = torch.randn(1, config.video_in_channels, *size, device=site.device)
    texts = torch.randn(2, 1, site.text_rows, config.text_in_channels, device=site.device).unbind()
    grid = model.prepare_grid(size)
    contexts = [model.prepare(grid, text) for text in texts]
    platform.reset_peak_memory(accelerator=site.accelerator)
    site.ranks.meter.start()
    first, _ = _timed(site, lambda: _velocities(model, latents, contexts))
    second, milliseconds = _timed(site, lambda: _velocities(model, latents, contexts))
    waited = 1e3 * site.ranks.meter.exposed_s() / 2
    yield Figure(f"{name}.latents", "x".join(map(str, size)))
    yield Figure(f"{name}.step", round(milliseconds, 3), "ms")
    if site.ranks.layout.num_ranks > 1:
        yield Figure(f"{name}.waited", round(waited, 3), "ms")
    peak = platform.memory_stats(accelerator=site.accelerator).peak
    yield Figure(f"{name}.peak", round(peak / GIB, 2), "GiB")
    # All but embedders and heads is in the layers, which cost about the same.
    value = round(milliseconds * whole.num_layers / config.num_layers, 3)
    yield Figure(f"{name}.whole_step", value, "ms", extrapolated=config != whole)
    if digest_of(first) != digest_of(second):
        yield Difference(f"{name}: the same latents gave other bits the second time")
    if not all(bool(part.isfinite().all()) for part in second):
        yield Difference(f"{name}: velocities are not finite")


def _velocities(model: Refiner, latents: Tensor, contexts: list[Any]) -> tuple[Tensor, Tensor]:
    """Of both texts, as a render asks for them."""
    if isinstance(model, RefinerVelocityPair):
        return model.velocity_pair(latents, *contexts)
    return model(latents, contexts[0]), model(latents, contexts[1])


def _timed(site: Site, work: Callable[[], tuple[Tensor, Tensor]]) -> tuple[tuple[Tensor, Tensor], float]:
    begin = mark(site.device)
    result = work()
    end = mark(site.device)
    settle(site.device)
    return result, begin.elapsed_time(end)
