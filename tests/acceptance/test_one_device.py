"""Whatever an acceptance builds lies on the device that was asked for, tables that are no parameters included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from magi2.acceptance import decoders, stack
from magi2.acceptance.preview_shapes import (
    CONFIG,
    DENSE,
    PREVIEW_CLIPS,
    SPARSE,
    clip_layout,
    make_layer,
    make_streams,
    rank_layout,
)
from magi2.acceptance.refiner_checks import REFINER, make_heads
from magi2.acceptance.refiner_shapes import random_weights
from magi2.acceptance.steps import text
from magi2.parallel.mesh import Mesh

ELSEWHERE = torch.device("meta")
"""Not the CPU, and it takes no memory: what a builder forgets to move stays on the CPU."""
CLIP = PREVIEW_CLIPS["272p"]


def places(thing: Any, name: str, seen: set[int]) -> Iterator[tuple[str, torch.device]]:
    """Every tensor that can be reached from a thing, by its path, with its device."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield name, thing.device
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from places(value, f"{name}.{key}", seen)
    elif isinstance(thing, list | tuple):
        for index, value in enumerate(thing):
            yield from places(value, f"{name}.{index}", seen)
    elif isinstance(thing, nn.Module):
        yield from places(vars(thing), name, seen)
    elif is_dataclass(thing):
        for field in fields(thing):
            yield from places(getattr(thing, field.name), f"{name}.{field.name}", seen)


def _tower() -> Any:
    return text._random_tower(
        SimpleNamespace(device=ELSEWHERE, dtype=torch.bfloat16, options=SimpleNamespace(layers=2))
    )


BUILDERS: dict[str, Callable[[], Any]] = {
    "preview": lambda: stack.build(Mesh.single(ELSEWHERE), stack.stack(CONFIG, 3)),
    "sparse layer": lambda: make_layer(SPARSE, ELSEWHERE),
    "dense layer": lambda: make_layer(DENSE, ELSEWHERE),
    "layout": lambda: clip_layout(CLIP, ELSEWHERE),
    "layout of a rank": lambda: rank_layout(CLIP, ELSEWHERE),
    "streams": lambda: make_streams(8, ELSEWHERE),
    "refiner": lambda: random_weights(ELSEWHERE, replace(REFINER, num_layers=3, mm_layers=(0, 2))),
    "refiner's heads": lambda: make_heads(ELSEWHERE),
    "turbo decoder": lambda: decoders.random_turbo_decoder(ELSEWHERE),
    "audio decoder": lambda: decoders.random_audio_decoder(ELSEWHERE),
    "text encoder": _tower,
}


@pytest.mark.parametrize("name", BUILDERS)
def test_all_that_a_builder_gives_is_on_the_device_that_was_asked_for(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "with_kernels", lambda model: model)
    monkeypatch.setattr(decoders, "init_random_", lambda model, generator: None)  # there are no generators elsewhere
    monkeypatch.setattr(decoders.torch, "Generator", lambda device: torch.default_generator)
    found = dict(places(BUILDERS[name](), name, set()))
    assert found
    assert not {place: str(device) for place, device in found.items() if device != ELSEWHERE}
