"""The text encoder on a text of a prompt's length."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from magi2 import platform
from magi2.acceptance.measure import GIB, settle, timed
from magi2.acceptance.plan import Difference, Figure, Found, NotRunError
from magi2.acceptance.site import Site
from magi2.acceptance.stack import digest_of

SENTENCE = "The camera moves slowly from left to right and the light of the sea turns blue. "


def run(site: Site) -> Iterator[Found]:
    """Loading, and milliseconds of a prompt; twice with equal bits."""
    weights = site.weights("text_encoder")
    if weights is None:
        raise NotRunError("no weights are given, and this network is described in their folder alone")
    # Here: transformers takes seconds.
    from magi2.models.text_encoder.encoder import load_text_encoder

    platform.reset_peak_memory(accelerator=site.accelerator)
    started = time.monotonic()
    encoder = load_text_encoder(weights.folder("text_encoder"), device=site.device, dtype=site.dtype)
    settle(site.device)
    yield Figure("load", round(time.monotonic() - started, 2), "s")
    text = SENTENCE * (1 + site.text_rows // encoder.count_tokens(SENTENCE))
    first, second = (encoder.encode(text).embeds for _ in range(2))
    yield Figure("tokens", first.shape[1])
    yield Figure("prompt", round(timed(lambda: encoder.encode(text), 3, warm_up=0, device=site.device), 2), "ms")
    yield Figure("peak", round(platform.memory_stats(accelerator=site.accelerator).peak / GIB, 2), "GiB")
    if digest_of([first]) != digest_of([second]):
        yield Difference("the same text gave other bits the second time")
    if not bool(torch.isfinite(first).all()):
        yield Difference("embeddings are not finite")
