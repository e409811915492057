"""The table of docs/nodes.md that says which cards suffice: what the memory check computes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from magi2.config.load import load_profile
from magi2.config.profile import Profile
from magi2.errors import ConfigError
from magi2.parallel.layout import ParallelLayout
from magi2.stages.layouts import check_preview_room, check_refiner_room
from tests.render_helpers import CONFIGS

PAGE = Path(__file__).parents[2] / "docs" / "nodes.md"
CARDS = {"H200": 139.8, "80 GB": 79.1}
"""GiB that torch reports of a card of that name; of 80 GB that of an H100."""
COUNTS = (1, 2, 4, 8)


def needs(check: Callable[[ParallelLayout, Profile, int], None], profile: Profile) -> list[float]:
    """GiB of a rank by the number of cards, all of which share a clip."""
    found = []
    for count in COUNTS:
        with pytest.raises(ConfigError) as caught:
            check(ParallelLayout(cp=count, ep=count), profile, 0)
        number = re.search(r"needs ([\d.]+) GiB", str(caught.value))
        assert number
        found.append(float(number[1]))
    return found


def row(name: str, weights: str) -> str:
    profile = load_profile(name, CONFIGS, [f"compute.weights={weights}"])
    sizes = needs(check_preview_room, profile)
    every = sizes
    if profile.refiner is not None:
        every = [max(pair) for pair in zip(sizes, needs(check_refiner_room, profile), strict=True)]
    fewest = [next(n for n, size in zip(COUNTS, every, strict=True) if size <= card) for card in CARDS.values()]
    cells = [name, weights, *(f"{size:.0f}" for size in every), *map(str, fewest)]
    return f"| {' | '.join(cells)} |"


def test_the_table_of_cards_is_what_the_memory_check_computes() -> None:
    wanted = [row(name, weights) for name in ("272p", "540p", "1080p") for weights in ("bf16", "fp8_experts", "fp8")]
    found = [line for line in PAGE.read_text().splitlines() if re.match(r"\| \d+p \| (bf16|fp8)", line)]
    assert found == wanted, "\n".join(wanted)
