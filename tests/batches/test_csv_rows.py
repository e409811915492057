"""Tables are read strictly: a broken row costs itself alone, and never makes other prompts of its neighbours."""

from __future__ import annotations

import re

import pytest

from magi2.batches.csv_rows import csv_rows
from magi2.batches.rows import Row
from magi2.inputs.limits import MAX_ROW_CHARS, MAX_ROWS


def good(rows: list[Row]) -> list[list[str]]:
    return [list(row.values.values()) for row in rows if not row.problem]


def problems(rows: list[Row]) -> list[tuple[int, str]]:
    return [(row.number, row.problem) for row in rows if row.problem]


BROKEN: dict[str, tuple[str, list[list[str]], dict[int, str]]] = {
    # text of the table: the rows that are good, and what is said of which lines
    "a mark that is never closed": (
        'prompt,seed\n"A cat sits,1\nA dog,2\nA cow,3\n',
        [["A dog", "2"], ["A cow", "3"]],
        {2: "opens a cell that has no end"},
    ),
    "a mark that closes in the next row": (
        'prompt,seed\n"A cat sits,1\n"A dog",2\n"A cow",3\n',
        [["A dog", "2"], ["A cow", "3"]],
        {2: "text follows the closing quotation mark of a cell, in line 3"},
    ),
    "a mark too many at the end": (
        'prompt,seed\n"A cat sits"",1\nA dog,2\n"A cow",3\n',
        [["A dog", "2"], ["A cow", "3"]],
        {2: "text follows the closing quotation mark of a cell, in line 4"},
    ),
    "a mark too many at the start": (
        'prompt,seed\n""A cat",1\nA dog,2\n',
        [["A dog", "2"]],
        {2: "text follows the closing quotation mark"},
    ),
    "a mark that opens nothing": ('prompt,seed\nA cat",1\nA dog,2\n', [["A dog", "2"]], {2: "mark inside a cell"}),
    "marks inside a bare cell": ('prompt,seed\nA "big" cat,1\nA dog,2\n', [["A dog", "2"]], {2: "double the marks"}),
    "inches": (
        'prompt,seed\nA 5" pipe,1\nA dog,2\nA 7" pipe,3\n',
        [["A dog", "2"]],
        {2: "mark inside", 4: "mark inside"},
    ),
    "text after a quoted cell": ('prompt,seed\n"A cat" sits,1\nA dog,2\n', [["A dog", "2"]], {2: "text follows"}),
    "a blank before a mark": ('prompt,seed\nA cat, "1"\nA dog,2\n', [["A dog", "2"]], {2: "mark inside a cell"}),
    "the rest of a broken cell is no row": (
        'prompt\n"A "big\ncat\nand dog"\n"A cow"\nA hen\n',
        [["A cow"], ["A hen"]],
        {2: "text follows", 3: "between two lines with broken quotation marks", 4: "mark inside a cell"},
    ),
    "rows that two marks swallowed": (
        'prompt,seed\n"A cat,1\nA dog,2\nA cow",3\nA hen,4\n',
        [["A hen", "4"]],
        {2: "whose lines look like rows"},
    ),
    "rows of other widths that two marks swallowed": (
        'prompt,seed\n"A cat, asleep,1\nA dog,2\nA cow",3\nA hen,4\n',
        [["A hen", "4"]],
        {2: "whose lines look like rows"},
    ),
    "rows that two marks swallowed, with names": (
        'name,prompt\none,"A cat\ntwo,A dog\nthree,A cow"\nfour,A hen\n',
        [["four", "A hen"]],
        {2: "whose lines look like rows"},
    ),
    "too few cells": ("prompt,seed\nA cat\nwalks,1\n", [["walks", "1"]], {2: "fewer cells than the header"}),
    "too many cells": ("prompt,seed\nA cat,1,\nA dog,2\n", [["A dog", "2"]], {2: "more cells than the header"}),
    "a comma that is text": (
        "prompt\nA cat, asleep\nA dog\n",
        [["A dog"]],
        {2: "2 for 1 (quote a cell that holds"},
    ),
    "a comma that is text, with room": (
        "prompt,tags\nA cat, asleep\nA dog,x\n",
        [["A dog", "x"]],
        {2: "begins with a blank"},
    ),
    "a semicolon that is text": (
        "prompt;tags\nA cat; asleep\nA dog;x\n",
        [["A dog", "x"]],
        {2: "before the semicolon"},
    ),
    "the header again": ("prompt\nA cat\nprompt\nA dog\n", [["A cat"], ["A dog"]], {3: "is the header again"}),
    "the header in capitals": ("prompt,seed\nA,1\n PROMPT ,Seed\nB,2\n", [["A", "1"], ["B", "2"]], {3: "header again"}),
    "a quoted header again": (
        'prompt,seed\nA,1\n"prompt","seed"\nB,2\n',
        [["A", "1"], ["B", "2"]],
        {3: "header again"},
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_row_costs_itself_alone(case: str) -> None:
    text, expected, said = BROKEN[case]
    rows = list(csv_rows(text))
    assert good(rows) == expected
    assert [number for number, _ in problems(rows)] == list(said)
    for (_, problem), words in zip(problems(rows), said.values(), strict=True):
        assert words in problem and "\n" not in problem


GOOD: dict[str, tuple[str, list[list[str]]]] = {
    "a cell of several lines": ('prompt,seed\n"two\nlines, and ""more""",1\n', [['two\nlines, and "more"', "1"]]),
    "paragraphs": ('prompt,seed\n"one, two\n\nthree",1\n', [["one, two\n\nthree", "1"]]),
    "numbers with commas over two lines": ('prompt,seed\n"1,000 birds\nfly",5\n', [["1,000 birds\nfly", "5"]]),
    "one column over several lines": ('prompt\n"A cat\nA dog"\n', [["A cat\nA dog"]]),
    "a line that ends in a comma": ('prompt,seed\n"A cat,\nasleep",5\n', [["A cat,\nasleep", "5"]]),
    "a prompt that is called one": ("prompt,seed\nprompt,\n", [["prompt", ""]]),
    "quoted blanks": ('prompt,tags\n"A cat"," x, y"\n', [["A cat", "x, y"]]),
    "rows of empty cells": ("prompt,seed\n\n,\n ,\t\nA,\n , , ,\n", [["A", ""]]),
    "semicolons": ("prompt;seed\nA, b;1\n", [["A, b", "1"]]),
    "tabs": ("prompt\tseed\nA, b; c\t1\n", [["A, b; c", "1"]]),
    "bars": ("prompt|seed\nA, b|1\n", [["A, b", "1"]]),
    "quoted header": ('"prompt";"seed"\n"A; b";1\n', [["A; b", "1"]]),
    "told separator": ("sep=;\nprompt;seed\nA;1\n", [["A", "1"]]),
    "told separator, quoted": ('"SEP=\t"\nprompt\tseed\nA\t1\n', [["A", "1"]]),
    "no last line end": ("prompt,seed\nA,1", [["A", "1"]]),
    "no row": ("prompt,seed\n\n", []),
    "nothing": ("\n \n", []),
}


@pytest.mark.parametrize("case", GOOD)
def test_what_can_be_read_in_one_way_is_read(case: str) -> None:
    text, expected = GOOD[case]
    rows = list(csv_rows(text))
    assert (good(rows), problems(rows)) == (expected, [])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("promt,seed\nA,1\n", "line 1: the header has the unknown column 'promt' (did you mean 'prompt'?)"),
        ("\n\nPrompt\nA\n", "line 3: the header has the unknown column 'Prompt' (did you mean 'prompt'?)"),
        ("A cat\nA dog\n", "line 1: the header has the unknown column 'A cat' (valid: delivery_name, "),
        ("prompt:seed\nA:1\n", "separators are comma, semicolon, tab, bar"),
        ("prompt;seed,name\nA;1,b\n", "line 1: the header has the unknown column"),
        ("sep=#\nprompt#seed\n", "line 1: sep= names none of comma, semicolon, tab, bar"),
        ("sep=,\nprompt;seed\nA;1\n", "line 2: the header has the unknown column 'prompt;seed'"),
        ("prompt,seed,prompt\nA,1,B\n", "line 1: the header names the column prompt twice"),
        ("prompt,,seed\nA,,1\n", "line 1: the header has no name for column 2"),
        ("prompt,seed,\nA,1,\n", "line 1: the header has no name for column 3"),
        ("prompt, seed\nA,1\n", "line 1: the header has a blank after a comma"),
        ("seed,name\n1,b\n", "line 1: the header has neither a column prompt nor prompt_file"),
        ('prompt,"seed\nA,1\n', "line 1: the header a quotation mark opens"),
        ('{"prompt": "A"}\n', "is this JSON? name the file .jsonl"),
        ("prompt,seed\nA,1\nseed,prompt\n2,B\n", "line 3: a second header: these are two files in one"),
        ("prompt,seed\nA,1\nprompt,name,tags\nB,b,c\n", "line 3: a second header"),
        ("prompt_file\na.txt\nprompt\nB\n", "line 3: a second header"),
    ],
)
def test_what_is_wrong_with_a_whole_table_is_said_once(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        list(csv_rows(text))


def test_lines_are_counted_as_an_editor_counts_them() -> None:
    rows = list(csv_rows('\nprompt,seed\n"two\nlines",1\n\n \nA\x0cB\u2028C,2\nD\n'))
    assert [row.number for row in rows] == [3, 7, 8]


def test_a_monstrous_cell_costs_its_row() -> None:
    long = "x" * (MAX_ROW_CHARS + 1)
    rows = list(csv_rows(f'prompt,seed\nA,1\n{long},2\n"{long}",3\nB,4\n'))
    assert good(rows) == [["A", "1"], ["B", "4"]]
    assert [number for number, _ in problems(rows)] == [3, 4]


def test_a_table_of_nothing_ends() -> None:
    with pytest.raises(ValueError, match=f"more than {MAX_ROWS} rows of empty cells"):
        list(csv_rows("prompt,seed\n" + ",\n" * (MAX_ROWS + 1)))
