"""Rows that stand for several clips: seeds, variants, choices; counted before any clip is made."""

from __future__ import annotations

import pytest

from magi2.batches.spread import Takes, parse_matrix, parse_seeds
from magi2.errors import InputError
from magi2.inputs.limits import MAX_NAME_CHARS, MAX_ROWS, MAX_VARIANTS
from magi2.types import MAX_SEED, variant_seed


def prompts(text: str) -> list[str]:
    return [take.prompt for take in Takes(parse_matrix(text))]


def test_a_choice_gives_a_prompt_for_each_alternative_and_several_all_combinations() -> None:
    assert prompts("a {red|blue} kite") == ["a red kite", "a blue kite"]
    assert prompts("{ dusk | dawn }, {sea|sand}") == ["dusk, sea", "dusk, sand", "dawn, sea", "dawn, sand"]
    assert prompts("a kite | a dune") == ["a kite | a dune"]


def test_escaped_signs_are_themselves() -> None:
    assert prompts(r"\{a\|b\} {c\|d|e\}} \\ \n") == [r"{a|b} c|d \ \n", r"{a|b} e} \ \n"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a {red|{dark|pale} blue} kite", "opens a choice inside another"),
        ("a {red|blue kite", "opens a choice that has no end"),
        ("a red|blue} kite", "closes a choice that none opens"),
        ("a {red|} kite", "empty alternative"),
        ("a {red| |blue} kite", "empty alternative"),
        ("a {red} kite", "a choice of one"),
        ("a {} kite", "a choice of one"),
        ("a {red|red } kite", "an alternative twice"),
        ('{"global_layer": {"context": "a shore"}}', "opens a choice inside another"),
    ],
)
def test_a_choice_that_is_none_is_refused_with_its_place_and_how_to_write_one(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as refused:
        parse_matrix(text)
    assert "at character" in str(refused.value) and r"\{" in str(refused.value)


def test_takes_are_counted_as_they_come_and_the_count_makes_none() -> None:
    takes = Takes(parse_matrix("{a|b|c} {d|e}"), (1, 2), 3, many_seeds=True)
    assert takes.count == len(list(takes)) == 36
    assert len({take.suffix for take in takes}) == 36
    assert Takes((("a", "b"),) * 30_000).count == MAX_ROWS + 1


def test_the_first_variant_is_the_seed_and_more_of_them_move_no_earlier_one() -> None:
    few, many = Takes((("a kite",),), (7,), 2), Takes((("a kite",),), (7,), 5)
    seeds = [take.seed_after(99) for take in many]
    assert seeds[:2] == [take.seed_after(99) for take in few] == [7, variant_seed(7, 2)]
    assert len(set(seeds)) == 5 and all(0 <= seed <= MAX_SEED for seed in seeds)
    assert [take.seed_after(99) for take in Takes((("a kite",),), variants=2)] == [99, variant_seed(99, 2)]


def test_suffixes_of_takes_stay_when_more_are_asked_for() -> None:
    few = [take.name("kite") for take in Takes(parse_matrix("a {red|blue} kite"), (1,), 2, many_seeds=True)]
    assert few == ["kite-red-s1", "kite-red-s1-v2", "kite-blue-s1", "kite-blue-s1-v2"]
    more = [take.name("kite") for take in Takes(parse_matrix("a {red|sea|blue} kite"), (1, 2), 3, many_seeds=True)]
    assert set(few) < set(more)


def test_a_long_name_is_cut_and_its_suffix_stays() -> None:
    *_, last = Takes((("a kite",),), variants=3)
    assert last.name("k" * MAX_NAME_CHARS) == "k" * (MAX_NAME_CHARS - 3) + "-v3"


@pytest.mark.parametrize("value", [[1, 2, 30], "1 2 30", "1, 2,30", ["1", 2, 30]])
def test_seeds_are_a_list_or_text_with_blanks_or_commas(value: object) -> None:
    assert parse_seeds(value) == (1, 2, 30)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "has 0 seeds"),
        (" , ", "has 0 seeds"),
        (list(range(MAX_VARIANTS + 1)), "has 1001 seeds"),
        ([0, 1, 0], "has 0 twice"),
        ([True], "seed is True"),
        ([1.0], r"seed is 1\.0"),
        ([-1], "seed is -1"),
        ([MAX_SEED + 1], "must be an integer from 0"),
        ("1|2", r"seed is '1\|2'"),
        (7, "not a list of seeds"),
        ({"a": 1}, "not a list of seeds"),
    ],
)
def test_what_is_no_list_of_seeds_is_refused(value: object, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        parse_seeds(value)
