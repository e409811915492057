"""Rows that come with a request: read as a file's are, within a limit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from magi2.batches.batch_file import make_batch, read_rows
from magi2.batches.inline_rows import InlineRows
from magi2.config.profiles import Profiles
from magi2.errors import InputError
from magi2.inputs.files import InputRoots
from magi2.inputs.limits import MAX_INLINE_BYTES
from tests.render_helpers import CONFIGS

TEXTS = {
    ".csv": "prompt,seed\na kite,1\n a boat,2\n\nbroken\n",
    ".jsonl": '{"prompt": "a kite", "seed": 1}\n"a boat"\n{"prompt": \n{"prompt": "a tree"}',
    ".json": '\n [{"prompt": "a kite", "tags": ["a"]}, "a boat", 7]',
    ".tsv": "\ufeffseed\tprompt\r\n1\ta kite\r\n",
}


@pytest.mark.parametrize("suffix", TEXTS)
def test_text_gives_the_rows_that_a_file_of_it_has(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"a{suffix}"
    file.write_text(TEXTS[suffix], newline="")
    assert InlineRows.of(TEXTS[suffix]).read() == read_rows(file)


@pytest.mark.parametrize(
    ("text", "prompts"),
    [
        ('"prompt"\n"a kite"\n', ["a kite"]),
        ('"prompt","seed"\n"a kite","1"\n', ["a kite"]),
        ('"a kite"\n"a boat"\n', ["a kite", "a boat"]),
    ],
)
def test_quoted_lines_are_a_table_where_the_first_names_columns(text: str, prompts: list[str]) -> None:
    assert [row.values["prompt"] for row in InlineRows.of(text).read()] == prompts


def test_rows_one_by_one_are_numbered_through() -> None:
    rows = InlineRows.of([{"prompt": "a\nkite", "tags": ["x", "y"]}, "a boat", {"prompt": 7}]).read()
    assert [(row.number, row.values) for row in rows] == [
        (1, {"prompt": "a\nkite", "tags": ["x", "y"]}),
        (2, {"prompt": "a boat"}),
        (3, {"prompt": 7}),
    ]


def test_more_than_the_limit_is_refused_and_the_limit_is_not() -> None:
    row = '{"prompt": "a kite"}'
    assert InlineRows.of(row.rjust(MAX_INLINE_BYTES)).read()
    for rows in (row.rjust(MAX_INLINE_BYTES + 1), "é" * MAX_INLINE_BYTES, [{"prompt": "a" * MAX_INLINE_BYTES}]):
        with pytest.raises(InputError, match=f"at most {MAX_INLINE_BYTES}"):
            InlineRows.of(rows)


@pytest.mark.parametrize("rows", [7, {"prompt": "a kite"}, True])
def test_what_is_no_list_of_rows_is_refused(rows: object) -> None:
    with pytest.raises(InputError, match="not text or a list of rows"):
        InlineRows.of(rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "\n", "[]", "a kite", "{"])
def test_text_without_rows_is_refused_and_called_the_rows(text: str) -> None:
    with pytest.raises(InputError, match=r"^the rows: "):
        InlineRows.of(text).read()


def test_relative_paths_are_refused_and_absolute_ones_read_from_the_roots(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a kite")
    rows = [{"prompt_file": name} for name in ("a.txt", str(tmp_path / "a.txt"))] + [{"prompt": "p", "image": "a.png"}]
    profiles, roots = Profiles(CONFIGS, "tiny"), InputRoots((tmp_path,))
    batch = make_batch(InlineRows.of(json.dumps(rows)).read(), profiles, folder=None, roots=roots)
    assert [clip.prompt for clip in batch.clips] == ["a kite"]
    assert ["is a relative path" in row.reason for row in batch.bad_rows] == [True, True]
