"""JSON of every shape that people write: a broken row costs itself alone and is named by its line."""

from __future__ import annotations

import json
import re

import pytest

from magi2.batches.json_rows import json_rows
from magi2.inputs.limits import MAX_ROW_CHARS, MAX_TAGS

ROWS = [{"prompt": "A", "tags": ["x", "y"]}, {"prompt": "B", "seed": 1}, {"prompt": "C\nD"}]
SHAPES = {
    "lines": ("".join(json.dumps(row) + "\n" for row in ROWS), [1, 2, 3]),
    "lines with blanks": ("\n\n" + "\n \n".join(f" {json.dumps(row)}\t" for row in ROWS), [3, 5, 7]),
    "an array": (json.dumps(ROWS), [1, 1, 1]),
    "an array, indented": (json.dumps(ROWS, indent=2), [2, 9, 13]),
    "an array of lines": ("[\n" + ",\n".join(map(json.dumps, ROWS)) + "\n]", [2, 3, 4]),
    "an array with a last comma": ("[\n" + "".join(f"{json.dumps(row)},\n" for row in ROWS) + "]", [2, 3, 4]),
    "indented objects": ("\n".join(json.dumps(row, indent=1) for row in ROWS), [1, 8, 12]),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_gives_the_same_rows(shape: str) -> None:
    text, lines = SHAPES[shape]
    rows = list(json_rows(text))
    assert [row.values for row in rows] == ROWS
    assert [row.number for row in rows] == lines


@pytest.mark.parametrize(
    ("text", "expected", "said"),
    [
        ('{"prompt": "A"}\n{broken\n{"prompt": "B"}\n', ["A", "B"], {2: "line 2 column 2"}),
        ('{"prompt": "A"\n{"prompt": "B"}\n', ["B"], {1: "Expecting ',' delimiter, line 2 column 1"}),
        ('{"prompt": "A}\n{"prompt": "B"}\n', ["B"], {1: "not JSON"}),
        ('{"prompt": "A"},\n{"prompt": "B"}\n', ["B"], {1: "text follows the value"}),
        ('{"prompt": "A"} {"prompt": "X"}\n{"prompt": "B"}\n', ["B"], {1: "text follows the value"}),
        ('"A"\n"B\n"C"\n', ["A", "C"], {2: "text follows the value"}),
        (
            '{\n "prompt": "A"\n "seed": 1\n}\n{\n "prompt": "B"\n}\n',
            ["B"],
            {1: "line 3 column 2; lines 1 to 4 are passed"},
        ),
        ('[\n{"prompt": "A"},\n{"prompt": B},\n{"prompt": "C"}\n]', ["A", "C"], {3: "line 3 column 12"}),
        ('[\n{"prompt": "A"}\n{"prompt": "B"}\n]', ["B"], {2: "a comma is missing"}),
        ('{"prompt": "A", "seed": 1, "prompt": "B"}\n"C"', ["C"], {1: "gives two values for 'prompt'"}),
        ('{"prompt": "A", "pro\\u006dpt": "B"}\n"C"', ["C"], {1: "gives two values for 'prompt'"}),
        ('{"prompt": "A", "image": {"a": "1", "a": "2"}}\n"C"', ["C"], {1: "gives two values for 'a'"}),
        ('{"prompt": "A", "tags": [{"a": 1, "a": 1}]}\n"C"', ["C"], {1: "gives two values for 'a'"}),
        ('[{"prompt": "A", "prompt": "B"}, {"prompt": "C"}]', ["C"], {1: "gives two values"}),
        ('{"seed": NaN}\n{"seed": -Infinity}\n{"seed": 1e400}\n"C"', ["C"], dict.fromkeys((1, 2, 3), "not finite")),
        ('[{"seed": NaN}, {"prompt": "C"}]', ["C"], {1: "not finite"}),
        ('{"seed": ' + "9" * 5000 + '}\n"C"', ["C"], {1: "a number has 5000 characters"}),
        ('{"tags": ' + "[" * 5000 + "]" * 5000 + '}\n{"prompt": "C"}', ["C"], {1: "nested more than"}),
        ('{"prompt": "A\tB"}\n"C"', ["C"], {1: "Invalid control character"}),
        ("{'prompt': 'A'}\n\"C\"", ["C"], {1: "Expecting property name"}),
        ('{\n "tags": [\n  "x"\n "y"\n ]\n}\n"C"', ["C"], {1: "lines 1 to 6 are passed over"}),
        ('7\nnull\ntrue\n[1]\n"C"', ["C"], {1: "is a int", 2: "is a NoneType", 3: "is a bool", 4: "is a list"}),
        (f'{{"tags": {["x"] * (MAX_TAGS + 1)}}}\n"C"'.replace("'", '"'), ["C"], {1: f"has {MAX_TAGS + 1} tags"}),
    ],
)
def test_a_broken_row_costs_itself_alone(text: str, expected: list[str], said: dict[int, str]) -> None:
    rows = list(json_rows(text))
    assert [row.values["prompt"] for row in rows if not row.problem] == expected
    bad = [row for row in rows if row.problem]
    assert [row.number for row in bad] == list(said)
    for row, words in zip(bad, said.values(), strict=True):
        assert row.problem and words in row.problem and "\n" not in row.problem


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "line 1: not JSON: Expecting property name"),
        ("[{", "line 1: not JSON: Expecting property name enclosed in double quotes, line 1 column 3"),
        ("[" * 100_000, "line 1: not JSON: nested more than"),
        ("prompt,seed\nA,1\nB,2\n", "line 1: not JSON: Expecting value, line 1 column 1"),
        ('[{"prompt": "A"}', "line 1: the array has no end, the file is cut off"),
        ('[\n{"prompt": "A"},\n{"prompt": "B', "line 3: not JSON: Unterminated string"),
        ('[{"prompt": "A"}]\n[{"prompt": "B"}]', "line 2: text follows the array"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_wrong_with_a_whole_file_is_said_once(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        list(json_rows(text))


def test_values_of_any_length_are_found_whole() -> None:
    for size in (10, 4_090, 70_000, MAX_ROW_CHARS - 100):
        (row, after) = json_rows(json.dumps([{"prompt": "x" * size}, "after"]))
        assert (len(row.values["prompt"]), after.values["prompt"]) == (size, "after")
    long = json.dumps({"prompt": "x" * MAX_ROW_CHARS})
    (row, after) = json_rows(f'{long}\n{{"prompt": "after"}}')
    assert row.problem and after.values["prompt"] == "after"
