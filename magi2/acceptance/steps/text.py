"""The text encoder on a text of a prompt's length, with the given weights or random ones of the published shape."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from magi2 import platform
from magi2.acceptance.measure import GIB, settle, timed
from magi2.acceptance.plan import Difference, Figure, Found, NotRunError
from magi2.acceptance.site import Site
from magi2.acceptance.stack import digest_of
from magi2.checkpoints.published import TEXT_CONFIG


def run(site: Site) -> Iterator[Found]:
    """Loading, and milliseconds of a prompt; twice with equal bits."""
    platform.reset_peak_memory(accelerator=site.accelerator)
    started = time.monotonic()
    tower, layers, whole, source = _tower(site)
    settle(site.device)
    yield Figure("weights", source)
    yield Figure("layers", layers)
    yield Figure("layers of the model", whole)
    yield Figure("load", round(time.monotonic() - started, 2), "s")
    generator = torch.Generator().manual_seed(2)
    vocabulary = tower.get_parameter("embed_tokens.weight").shape[0]
    ids = torch.randint(vocabulary, (1, site.text_rows), generator=generator).to(site.device)

    @torch.no_grad()
    def encode() -> Tensor:
        embeds: Tensor = tower(input_ids=ids, use_cache=False).last_hidden_state
        return embeds

    first, second = encode(), encode()
    span = timed(encode, 3, warm_up=0, device=site.device)
    yield Figure("tokens", site.text_rows)
    yield Figure("prompt", round(span * whole / layers, 2), "ms", extrapolated=layers != whole)
    yield Figure("peak", round(platform.memory_stats(accelerator=site.accelerator).peak / GIB, 2), "GiB")
    if digest_of([first]) != digest_of([second]):
        yield Difference("the same tokens gave other bits the second time")
    if not bool(first.isfinite().all()):
        yield Difference("embeddings are not finite")


def _tower(site: Site) -> tuple[nn.Module, int, int, str]:
    """The network, its layers, those of the whole model, and whether its weights are given."""
    # Here: transformers takes seconds.
    from magi2.models.text_encoder.encoder import load_text_encoder

    weights = site.weights("text_encoder")
    if weights is None:
        return _random_tower(site)
    tower = load_text_encoder(weights.folder("text_encoder"), device=site.device, dtype=site.dtype).tower
    layers = len(tower.get_submodule("layers"))  # type: ignore[arg-type]
    return tower, layers, layers, "given"


def _random_tower(site: Site) -> tuple[nn.Module, int, int, str]:
    if site.device.type == "cpu":
        raise NotRunError("no weights are given, and of the published shape it is too large for a CPU")
    tower, layers, whole = random_tower(site.device, site.dtype, site.options.layers)
    return tower, layers, whole, "random"


def random_tower(device: torch.device, dtype: torch.dtype, at_most: int | None = None) -> tuple[nn.Module, int, int]:
    """The published text tower with random weights, of at most so many layers; also its layers and those that run."""
    from magi2.models.text_encoder.tower import SKIPPED_LAYERS, build_tower, parse_config

    config = parse_config(TEXT_CONFIG)
    whole = config.num_hidden_layers - SKIPPED_LAYERS
    layers = min(whole, at_most or whole)
    tower = build_tower(config, num_layers=layers, dtype=dtype).to_empty(device=device)
    torch.manual_seed(1)
    for parameter in tower.parameters():
        scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.1
        parameter.requires_grad_(False).normal_(std=scale)
    # The rotary frequencies are in no file: computed anew, as loading does.
    rotary = tower.get_submodule("rotary_emb")
    tower.rotary_emb = type(rotary)(config).to(device)
    return tower, layers, whole
