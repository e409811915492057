"""What is planted is found, where it was planted; what is asked for is no defect."""

from __future__ import annotations

from itertools import cycle, product

import pytest
import torch

from demo_world.planted import PLANTED, Decoded
from magi2.quality.defects import DEFECTS, judge
from magi2.quality.measures import Measures
from magi2.quality.thresholds import USUAL, Thresholds
from magi2.types import Expect
from tests.quality.exact_clips import FPS, SECONDS, lively, measured, report_of

CONTINUOUS = Expect("continuous", "continuous")
PLACES = {"start": (0.0, 1.0), "middle": (1.6, 2.6), "end": (SECONDS - 1.0, SECONDS)}
CASES = [(name, place) for name, place in zip(PLANTED, cycle(PLACES), strict=False) if name != "shorter"]


@pytest.fixture(scope="module")
def clip() -> Decoded:
    return lively()


def flags_of(clip: Decoded, expect: Expect = CONTINUOUS, thresholds: Thresholds = USUAL) -> tuple[str, ...]:
    return judge(measured(clip), expect, thresholds).flags


def test_a_good_clip_has_no_defect_however_much_is_expected(clip: Decoded) -> None:
    assert flags_of(clip) == ()


@pytest.mark.parametrize(("name", "place"), [*CASES, ("shorter", "end")])
def test_what_is_planted_for_a_second_is_found_where_it_is(name: str, place: str, clip: Decoded) -> None:
    start, end = PLACES[place]
    found = judge(measured(clip.with_defect(name, start, end)), CONTINUOUS, USUAL)
    (spans,) = (defect.spans for defect in found.defects if defect.kind == PLANTED[name])
    assert all(start - 0.5 <= first <= last <= end + 0.5 for first, last in spans), spans


@pytest.mark.parametrize(("level", "flag"), [(-1.0, "black"), (1.0, "one_coloured"), (0.1, "one_coloured")])
def test_half_a_second_of_nothing_is_found_and_so_are_pieces_of_a_twentieth(level: float, flag: str) -> None:
    pieces = lively(10.0)
    for at in (10, 40, 70, 100):
        pieces.pixels[:, :, at : at + 2] = level
    assert flag in flags_of(pieces, Expect("any", "any"))
    once = lively(10.0)
    once.pixels[:, :, 50:57] = level
    assert flag in flags_of(once, Expect("any", "any"))
    blink = lively(10.0)
    blink.pixels[:, :, 50:53] = level
    assert flag not in flags_of(blink, Expect("any", "any")), "less than either"


def test_one_frame_of_black_is_a_flash(clip: Decoded) -> None:
    blink = Decoded(clip.pixels.clone(), clip.samples, FPS)
    blink.pixels[:, :, 25] = -1
    (defect,) = judge(measured(blink), Expect(), USUAL).defects
    assert (defect.kind, defect.spans) == ("flash", ((25 / FPS, 26 / FPS),))


def rests(start: float, end: float) -> Decoded:
    """A clip whose picture and sound rest from `start` to `end`."""
    return lively().with_defect("frozen", start, end).with_defect("silent", start, end)


@pytest.mark.parametrize(
    ("expect", "stall", "rest_at_the_end", "nothing_at_all"),
    [
        ("moving", True, True, True),
        ("continuous", True, True, True),
        ("rest", True, False, False),
        ("any", False, False, False),
    ],
)
def test_rest_is_a_defect_where_it_is_not_asked_for(
    expect: str, stall: bool, rest_at_the_end: bool, nothing_at_all: bool
) -> None:
    asked = Expect(expect, expect)  # type: ignore[arg-type]
    wanted = {1.0: stall, 2.5: rest_at_the_end, 0.0: nothing_at_all}
    for start, is_defect in wanted.items():
        found = judge(measured(rests(start, 2.5 if start == 1.0 else SECONDS)), asked, USUAL)
        assert ({"frozen", "silent"} <= set(found.flags), {"frozen", "silent"} & set(found.flags) != set()) == (
            is_defect,
            is_defect,
        ), start


def test_the_longest_rest_and_its_share_are_told_even_where_it_is_asked_for() -> None:
    found = judge(measured(rests(1.0, 3.0)), Expect("any", "any"), USUAL)
    assert found.flags == ()
    assert (found.still_s, found.still_share) == pytest.approx((2.0, 0.5), abs=0.1)
    assert (found.silent_s, found.silent_share) == pytest.approx((2.0, 0.5), abs=0.1)


def test_a_slow_fade_and_a_small_thing_that_moves_are_not_still() -> None:
    fade = lively()
    fade.pixels[:] = torch.linspace(0, 0.25, fade.pixels.shape[2])[:, None, None]
    fade.pixels[..., :4] = -0.5
    small = lively()
    small.pixels[:] = 0
    for at in range(small.pixels.shape[2]):
        small.pixels[0, :, at, 10:12, at : at + 2] = 0.7
    assert "frozen" not in flags_of(fade) and "frozen" not in flags_of(small)


def test_other_thresholds_judge_the_same_measures_otherwise() -> None:
    measures = measured(lively().with_defect("frozen", 1.0, 2.2))
    assert judge(measures, Expect(), USUAL).flags == ("frozen",)
    assert judge(measures, Expect(), Thresholds(still_s=2.0)).flags == ()
    assert Thresholds(still_s=2.0).digest() != USUAL.digest()


def test_measures_that_are_none_or_damaged_are_none() -> None:
    whole = report_of(lively(1.0))
    for part, name in product(("picture", "sound"), ("lost",)):
        damaged = {**whole, part: {**whole[part], name: "1 2 x"}}  # type: ignore[dict-item]
        assert Measures.of(damaged) is None
        assert Measures.of({**whole, part: {**whole[part], name: "0 0"}}) is None  # type: ignore[dict-item]
    for nothing in (
        None,
        {},
        [],
        "text",
        {"picture": 1},
        {"picture": {}, "sound": {}},
        {**whole, "picture": {"fps": 0}},
    ):
        assert Measures.of(nothing) is None


def test_every_kind_of_defect_is_planted_or_tested_by_itself() -> None:
    assert set(DEFECTS) - set(PLANTED.values()) == {"flash"}
