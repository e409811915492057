"""The texts that text tower and transformer learn from: what the text encoder reads of prompts in every wording."""

from __future__ import annotations

import random
from collections.abc import Iterator

from demo_world.scenes import Scene
from demo_world.wordings import FIGURE_STYLES, STYLES, encoder_text, enhance_offline, write_caption

OFFLINE_SHARE = 0.4
"""Of all texts; the demo's profiles enhance prompts in this way."""
FIGURE_SHARE = 1 / 3
"""Clips that begin with a reference image."""
NAMED_SHARE = 0.2
"""Of the prompts with a reference image, those that say what it shows all the same."""


def draw_text(scene: Scene, rng: random.Random, *, has_figure: bool) -> str:
    """A text that asks for `scene`, of a clip with or without a reference image."""
    names_look = not has_figure or rng.random() < NAMED_SHARE
    caption = write_caption(scene, rng, rng.choice(STYLES if names_look else FIGURE_STYLES))
    if rng.random() < OFFLINE_SHARE:
        caption = enhance_offline(caption, has_figure=has_figure)
    return encoder_text(caption, has_figure=has_figure)


def by_length(lengths: list[int], parts: int) -> Iterator[list[int]]:
    """Indices of texts in `parts` of equal count, short ones together, so that little is padded."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    size = -(-len(order) // parts)
    return (order[begin : begin + size] for begin in range(0, len(order), size))
