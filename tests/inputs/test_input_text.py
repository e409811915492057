"""Text from outside: what is parsed, what is refused at once, and how it is quoted."""

from __future__ import annotations

import resource
from collections.abc import Callable

import pytest

from magi2.inputs.limits import (
    MAX_JSON_DEPTH,
    MAX_NUMBER_CHARS,
    MAX_QUOTED_CHARS,
    MAX_YAML_ALIASES,
    MAX_YAML_CHARS,
    MAX_YAML_DEPTH,
)
from magi2.inputs.text import is_name, load_json, load_yaml, quoted, shown

SECRET = "hunter2"


def aliases(count: int) -> str:
    return f"[&a x{', *a' * count}]"


def bomb(levels: int, width: int) -> str:
    """Text of a few hundred characters that stands for `width` to the power of `levels` words."""
    lists = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join([f"l0: &l0 [{', '.join(['x'] * width)}]", *lists])


def test_ordinary_values_are_read() -> None:
    assert load_yaml("a: [1, 2.5, true, null, x, {b: -3}]") == {"a": [1, 2.5, True, None, "x", {"b": -3}]}
    assert load_yaml("a: &b {c: 1}\nd: {<<: *b, e: 2}") == {"a": {"c": 1}, "d": {"c": 1, "e": 2}}
    assert load_json('{"a": [1, 2.5, true, null, "x", {"b": -3}]}') == {"a": [1, 2.5, True, None, "x", {"b": -3}]}


LIMITS: dict[str, tuple[Callable[[str], object], Callable[[int], str], int]] = {
    "YAML aliases": (load_yaml, aliases, MAX_YAML_ALIASES),
    "YAML depth": (load_yaml, lambda depth: "[" * (depth - 1) + "x" + "]" * (depth - 1), MAX_YAML_DEPTH),
    "YAML size": (load_yaml, lambda size: "x" * size, MAX_YAML_CHARS),
    "YAML number": (load_yaml, lambda digits: "9" * digits, MAX_NUMBER_CHARS),
    "JSON depth": (load_json, lambda depth: "[" * (depth + 1) + "]" * (depth + 1), MAX_JSON_DEPTH),
    "JSON depth of objects": (load_json, lambda depth: '{"a":' * depth + "{}" + "}" * depth, MAX_JSON_DEPTH),
    "JSON number": (load_json, lambda digits: "9" * digits, MAX_NUMBER_CHARS),
}


@pytest.mark.parametrize("case", LIMITS)
def test_a_limit_holds_on_both_sides(case: str) -> None:
    load, make, limit = LIMITS[case]
    load(make(limit))
    with pytest.raises(ValueError, match=r"more than|at most"):
        load(make(limit + 1))


@pytest.mark.parametrize(
    "text",
    [
        bomb(9, 9),
        bomb(30, 2),
        "a: &a [*a]",
        "&a {b: *a}",
        "[" * 60_000,
        "{a: " * 15_000,
        "- " * 30_000,
        "? " * 30_000,
        "0x" + "f" * 60_000,
        "1:" * 30_000 + "1",
        "9" * 60_000,
        ".inf",
        "-.INF",
        ".nan",
        "1.0e+999",
        "!!int ''",
        "!!int hunter2",
        "!!float hunter2",
        "!!float ''",
        "!!bool hunter2",
        "!!timestamp hunter2",
        "2001-99-99",
        "!!python/object/apply:os.system [hunter2]",
        "!hunter2 x",
        "hunter2: 1\nhunter2: 2",
        "a: {'b': 1, \"b\": 2}",
        "*hunter2",
        "a: 1\n hunter2: [",
        "hunter2: &a 1\n&a &a",
        "hunter2 \x07",
        "%YAML 9.9 hunter2",
        "--- hunter2\n--- b",
    ],
)
def test_a_yaml_text_that_is_none_or_stands_for_too_much_is_refused_without_its_words(text: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"YAML|number|nested|aliases") as caught:
        load_yaml(text)
    assert SECRET not in str(caught.value) and len(str(caught.value)) < 100
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "1" * 1_000_000,
        "1." + "1" * 1_000_000,
        "NaN",
        "[Infinity]",
        '{"a": -Infinity}',
        "1e999",
        '{"hunter2": hunter2}',
        '"hunter2',
        '{"hunter2": 1, "hunter2": 2}',
        '[{"a": {"b": 1, "\\u0062": 2}}]',
        '{"a": "hunter2\x01"}',
        "",
    ],
)
def test_a_json_text_that_is_none_or_holds_too_much_is_refused_without_its_words(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        load_json(text)
    assert SECRET not in str(caught.value) and len(str(caught.value)) < 100


@pytest.mark.parametrize("name", ["1080p", "_published", "negative_prompt.txt", "a-b.c_d", "x" * 100])
def test_names_are_letters_digits_dots_lines_and_dashes(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize(
    "text",
    ["", ".", "..", ".hidden", "-x", "a/b", "/etc/passwd", "../x", "a\\b", "a b", "a\n", "a\0", "ä", "x" * 101, "~a"],
)
def test_paths_are_no_names(text: str) -> None:
    assert not is_name(text)


def test_what_is_quoted_is_short_and_on_one_line() -> None:
    assert shown("a\nb\x1b[31m\u202ec\0d") == "a b [31m c d"
    assert shown("x" * MAX_QUOTED_CHARS) == "x" * MAX_QUOTED_CHARS
    assert len(shown("x" * 1_000_000)) == len(quoted(["x"] * 1_000)) == MAX_QUOTED_CHARS
    assert quoted("a\nb") == "'a\\nb'"
    assert shown("half \ud83d") == "half  "
