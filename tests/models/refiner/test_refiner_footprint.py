"""Memory of one rank by arithmetic: above what a forward is counted to take, and refused before weights load."""

from __future__ import annotations

import pytest

from magi2.errors import ConfigError
from magi2.models.refiner.config import RefinerConfig
from magi2.models.refiner.footprint import check_footprint
from magi2.parallel.layout import ParallelLayout

GIB = 1 << 30
DELIVERY, TEXT = (63, 68, 120), 2000


def need(layout: str, card_gib: float = 80):
    size = int(card_gib * GIB)
    return check_footprint(RefinerConfig(), ParallelLayout.parse(layout), DELIVERY, TEXT, card_bytes=size)


def test_weights_are_the_published_bytes():
    assert need("sp1").weights == need("sp8").weights == 13_484_611_648


@pytest.mark.parametrize(("layout", "counted_gib"), [("sp1", 27.3), ("sp8", 8.6)])
def test_arithmetic_is_above_what_a_forward_is_counted_to_take(layout, counted_gib):
    found = need(layout)
    assert counted_gib * GIB < found.activations + found.buffers < 1.5 * counted_gib * GIB


def test_one_card_of_80_gb_takes_the_largest_clip():
    assert need("sp1", 80e9 / GIB).total < 60e9


def test_a_small_card_is_refused_with_the_numbers_and_what_fits():
    with pytest.raises(ConfigError, match=r"sp1.cfg1.ep1 needs 4\d\.\d GiB a rank .*, a card has 24.0 GiB"):
        need("sp1", 24)
    with pytest.raises(ConfigError, match=r"sp2.cfg2.ep2 needs .*a card has 34.0 GiB.*nearest that work: sp4.cfg1.ep4"):
        need("sp2.cfg2", 34)
