"""A step of the preview at each size that the profiles ask for, under the layout: by part, twice with equal bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import torch

from magi2 import platform
from magi2.acceptance.building import built
from magi2.acceptance.floors import step_floor
from magi2.acceptance.measure import GIB, Ceilings, measure_ceilings, release
from magi2.acceptance.plan import Difference, Figure, Found
from magi2.acceptance.preview_shapes import CONFIG, Clip
from magi2.acceptance.site import Site, Size
from magi2.acceptance.stack import FEWEST_LAYERS, Parts, build, denoise, first_difference, stack, with_kernels
from magi2.errors import ConfigError
from magi2.models.preview.config import BF16, PreviewConfig
from magi2.models.preview.footprint import check_footprint
from magi2.models.preview.lengths import audio_latent_count
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.state_dict import load_preview
from magi2.sampling.schedule import GUIDED
from magi2.stages.layouts import check_layout

WARM_UP = 1
"""Steps that compile and allocate, and do not count; a CPU has none of these."""


@dataclass(frozen=True)
class Run:
    """One size: what was measured of its steps."""

    name: str
    size: Size
    step_ms: float
    forward_ms: float
    parts: Mapping[str, float]
    waited_ms: float
    sent_bytes: float
    peak_bytes: int


def run(site: Site) -> Iterator[Found]:
    """Both guidance branches of ten seconds. Of many ranks, rank 0 tells of itself."""
    for profile in site.profiles:
        check_layout(site.ranks.layout, profile)
    whole = site.profiles[0].architectures.preview
    limits = None if site.device.type == "cpu" else measure_ceilings(site.device)
    release()
    config = stack(whole, fitting_layers(site, whole))
    model = yield from built(site, config.num_layers, whole.num_layers, lambda: _model(site, config, whole))
    yield Figure("format", model.weights)
    for name, size in site.preview_sizes.items():
        yield from _steps(site, model, name, size, whole, limits)
        release()


def fitting_layers(site: Site, whole: PreviewConfig) -> int:
    """How many layers the cards hold beside the largest clip, at most as many as were asked for.

    Raises ConfigError when the layout is none for the model, not even the fewest fit, or the card takes no FP8.
    """
    if site.options.weights != BF16 and (refusal := platform.fp8_refusal(accelerator=site.accelerator)):
        raise ConfigError(refusal)
    most = max(FEWEST_LAYERS, min(whole.num_layers, site.options.layers or whole.num_layers))
    if site.accelerator.name == "cpu":
        return most
    size = next(iter(site.preview_sizes.values()))
    tokens = {"video": prod(size), "audio": audio_latent_count(site.profiles[0].duration_s), "text": site.text_rows}
    card_bytes = platform.memory_stats(accelerator=site.accelerator).total

    def fits(layers: int) -> bool:
        try:
            check_footprint(
                stack(whole, layers),
                site.ranks.layout,
                tokens,
                card_bytes=card_bytes,
                compute_dtype=site.dtype,
                weights=site.profiles[0].compute.weights,
                branches=(GUIDED,),
            )
        except ConfigError:
            if layers == FEWEST_LAYERS:
                raise
            return False
        return True

    fewest = FEWEST_LAYERS
    if fits(most):
        return most
    fits(fewest)
    while fewest < most:  # it fits with the fewest, and not known with more
        middle = (fewest + most + 1) // 2
        fewest, most = (middle, most) if fits(middle) else (fewest, middle - 1)
    return fewest


def _model(site: Site, config: PreviewConfig, whole: PreviewConfig) -> tuple[PreviewModel, str]:
    """The given weights where all layers fit, else random ones; and which these are."""
    weights = site.weights("preview") if config == whole else None
    if weights is None:
        return build(site.ranks, config, site.dtype, site.profiles[0].compute.weights), "random"
    model = load_preview(
        weights.folder("preview"),
        config,
        device=site.device,
        compute_dtype=site.dtype,
        weights=site.profiles[0].compute.weights,
        mesh=site.ranks,
    )
    return with_kernels(model), "given"


def _steps(
    site: Site, model: PreviewModel, name: str, size: Size, whole: PreviewConfig, limits: Ceilings | None
) -> Iterator[Found]:
    rows = {"audio_rows": audio_latent_count(site.profiles[0].duration_s), "text_rows": site.text_rows}
    platform.reset_peak_memory(accelerator=site.accelerator)
    warm_up = 0 if site.device.type == "cpu" else WARM_UP
    calls = warm_up + 2  # a step lasts from one call of the model to the next
    first = denoise(model, size, calls, **rows)
    parts, meter = Parts(), site.ranks.meter
    meter.start()
    with parts.watching(model):
        second = denoise(model, size, calls, **rows)
    found = Run(
        name,
        size,
        second.watched.step_ms(warm_up),
        second.watched.forward_ms(warm_up),
        parts.ms(),
        1e3 * meter.exposed_s() / calls,
        sum(meter.sent_bytes.values()) / calls,
        platform.memory_stats(accelerator=site.accelerator).peak,
    )
    floors = {each.num_layers: _floor(each, size, limits, site) for each in (model.config, whole)}
    yield from figures(found, model.config, whole, floors)
    if first.digest != second.digest:
        share, distance = first.distance(second)
        others = f"{share:.2%} of the values differ, by at most {distance:.3g}"
        where = first_difference(model, size, **rows) or "no part of a layer when each was asked once more"
        yield Difference(f"{name}: the same noise gave other bits the second time: {others}; first in {where}")
    if not (first.is_finite and second.is_finite):
        yield Difference(f"{name}: latents are not finite")


def figures(
    found: Run, config: PreviewConfig, whole: PreviewConfig, floors: Mapping[int, float | None]
) -> Iterator[Figure]:
    """A size's figures; `floors` are those of a step in milliseconds, by layers."""

    def ms(part: str, value: float, floor: float | None = None, *, extrapolated: bool = False) -> Figure:
        return Figure(f"{found.name}.{part}", round(value, 3), "ms", floor and round(floor, 3), extrapolated)

    yield Figure(f"{found.name}.latents", "x".join(map(str, found.size)))
    yield ms("step", found.step_ms, floors[config.num_layers])
    for part, value in found.parts.items():
        yield ms(part, value)
    yield ms("outside layers", max(found.forward_ms - layers_ms(config, found.parts), 0.0))
    yield ms("between forwards", max(found.step_ms - found.forward_ms, 0.0))
    if found.sent_bytes:
        yield ms("waited", found.waited_ms)
        yield Figure(f"{found.name}.sent", round(found.sent_bytes / 2**20, 1), "MiB")
    yield Figure(f"{found.name}.peak", round(found.peak_bytes / GIB, 2), "GiB")
    missing = layers_ms(whole, found.parts) - layers_ms(config, found.parts)
    is_whole = config.num_layers == whole.num_layers
    yield ms("whole_step", found.step_ms + missing, floors[whole.num_layers], extrapolated=not is_whole)


def layers_ms(config: PreviewConfig, parts: Mapping[str, float]) -> float:
    """What the layers of an architecture take, by the medians of both kinds."""
    sparse = len(config.moe_config.moe_layers)
    return sparse * parts.get("sparse_layer", 0.0) + (config.num_layers - sparse) * parts.get("dense_layer", 0.0)


def _floor(config: PreviewConfig, size: Size, limits: Ceilings | None, site: Site) -> float | None:
    """Of the published widths on an accelerator, spread perfectly over all ranks."""
    is_published = (config.hidden_size, config.moe_config.num_experts) == (
        CONFIG.hidden_size,
        CONFIG.moe_config.num_experts,
    )
    if limits is None or not is_published or site.dtype != torch.bfloat16:
        return None
    return step_floor(config, Clip("", prod(size)), limits) / site.ranks.layout.num_ranks
