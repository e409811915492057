"""Which sizes a layout may have, and what a refusal says."""

from __future__ import annotations

import pytest

from magi2.errors import ConfigError
from magi2.parallel.layout import ModelHeads, ParallelLayout, check_heads, nearest_layouts

PUBLISHED = ModelHeads(attention=24, key_value=24, moe=12, experts=256)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("sp8.cfg1.ep4", (8, 1, 4)),
        ("sp8.ep8", (8, 1, 8)),
        ("sp4.cfg2.ep4", (4, 2, 4)),
        ("sp2", (2, 1, 2)),
        ("sp1.cfg2", (1, 2, 1)),
        ("cfg2.ep2", (1, 2, 2)),
        ("sp1", (1, 1, 1)),
    ],
)
def test_text_and_layout_are_the_same(text: str, sizes: tuple[int, int, int]) -> None:
    layout = ParallelLayout.parse(text)
    assert (layout.cp, layout.cfg, layout.ep) == sizes
    assert layout.num_ranks == layout.cp * layout.cfg
    assert ParallelLayout.parse(str(layout)) == layout


@pytest.mark.parametrize("text", ["", "sp", "sp0", "sp8cfg2", "sp8.sp8", "tp8", "sp8..ep4", "sp-2", "sp8.cfg1.ep4.x"])
def test_other_text_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"not understood .*sp8\.cfg1\.ep4"):
        ParallelLayout.parse(text)


def test_a_third_branch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sp2\.cfg3.*2 branches"):
        ParallelLayout.parse("sp2.cfg3")


def test_experts_that_do_not_divide_the_ranks_are_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"ep 3 does not divide the 8 ranks \(sp8\.cfg1\.ep2 or sp8\.cfg1\.ep4\)"):
        ParallelLayout.parse("sp8.ep3")


@pytest.mark.parametrize("text", ["sp8.ep4", "sp8.ep8", "sp4.cfg2.ep4", "sp4.cfg2.ep8", "sp2", "sp1.cfg2", "sp1"])
def test_layouts_of_the_published_model_are_accepted(text: str) -> None:
    check_heads(ParallelLayout.parse(text), PUBLISHED)


@pytest.mark.parametrize(
    ("text", "heads", "reason", "nearest"),
    [
        ("sp5", PUBLISHED, "24 attention and 24 key/value heads do not divide by cp 5", "sp4.cfg1.ep4"),
        ("sp8", ModelHeads(24, 4, 12, 256), "4 key/value heads do not divide by cp 8", "sp4.cfg2.ep8"),
        ("sp16.ep16", ModelHeads(32, 32, 12, 256), "24 halves of 12 MoE heads do not divide by ep 16", "sp16.cfg1.ep8"),
        ("sp8", ModelHeads(8, 8, 12, 255), "halves MoE heads, whose 255 experts are odd", "sp8.cfg1.ep4"),
    ],
)
def test_heads_that_do_not_divide_are_refused_with_the_nearest(
    text: str, heads: ModelHeads, reason: str, nearest: str
) -> None:
    with pytest.raises(ConfigError, match=f"{reason}.*nearest that work: .*{nearest}"):
        check_heads(ParallelLayout.parse(text), heads)


def test_nearest_layouts_use_as_many_ranks_as_work() -> None:
    found = nearest_layouts(ParallelLayout(8, 1, 8), lambda layout: layout.cp in (3, 4) and layout.ep > 1)
    assert [str(layout) for layout in found] == ["sp4.cfg2.ep8", "sp4.cfg2.ep4"]
    assert nearest_layouts(ParallelLayout(2, 1, 2), lambda layout: False) == []
