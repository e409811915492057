"""Batch files, prompts and profiles: whatever somebody writes is read, or refused in words that lead to it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magi2.batches.batch_file import Batch, read_batch
from magi2.config.load import load_profile
from magi2.config.profile import Profile
from magi2.errors import InputError
from magi2.inputs.limits import MAX_BATCH_BYTES
from magi2.inputs.readable import readable
from magi2.prompts.compact import compact_prompt
from tests.fuzz.bounds import bounded
from tests.render_helpers import CONFIGS

TINY = load_profile("tiny", CONFIGS)
WORDS = (
    *(
        "prompt",
        "seed",
        "prompt_file",
        "image",
        "tags",
        "name",
        "priority",
        "profile",
        "tiny",
        "A cat",
        "7",
        "-1",
        "1e9",
    ),
    *('"', '""', "'", ",", ";", "\t", "|", " ", "\n", "\n", "\r\n", "\r", "\0", "\ufeff", "\u2028", "\x0c", "\u200b"),
    *("{", "}", "[", "]", ":", '{"prompt": "', '"}', '{"', '": ', "null", "true", "NaN", "1e400", "\\", "\\ud83d", "é"),
    *("sep=;", "<Figure 1>", "a.txt", "a.png", "../a", "骰子", "\u0301", "\udce9"),
)
TEXTS = st.lists(st.sampled_from(WORDS) | st.text(max_size=4), max_size=40).map("".join)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=6), inner),
    max_leaves=12,
)
ENCODINGS = st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "cp1252", "gb18030"])
TABLES = st.tuples(
    st.sampled_from(["prompt,seed\n", "prompt\n", "seed;prompt\r\n", "prompt\ttags\n", "sep=|\nprompt|name\n", ""]),
    TEXTS,
).map("".join)
FILES = st.one_of(
    st.builds(
        lambda text, name: text.encode(name, errors="surrogateescape" if name == "utf-8" else "replace"),
        TABLES | TEXTS,
        ENCODINGS,
    ),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.lists(JSON | st.fixed_dictionaries({"prompt": JSON}), max_size=4).map(
        lambda rows: "\n".join(map(json.dumps, rows)).encode()
    ),
    st.binary(max_size=60),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "a.txt").write_text("A heron")
    return folder


def profile_of(name: str | None) -> Profile:
    if name in (None, "tiny"):
        return TINY
    raise InputError("unknown profile")


def read(path: Path, content: bytes) -> Batch | None:
    """The batch of a file, or None when it is refused as a whole, in one sentence."""
    path.write_bytes(content)
    with bounded():
        try:
            return read_batch(path, profile_of)
        except InputError as error:
            assert "\n" not in str(error) and len(str(error)) < 1_000
            return None


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
@settings(deadline=None)
@given(content=FILES)
def test_a_batch_file_is_read_or_refused(suffix: str, content: bytes, folder: Path) -> None:
    batch = read(folder / f"night{suffix}", content)
    if batch is None:
        return
    lines = len(re.findall(rb"\r\n|\r|\n|\r?\n\0|\0\n", content)) + 1
    for row in batch.bad_rows:
        assert re.match(r"line [0-9]+(, item [0-9]+)?: ", str(row)) and "\n" not in str(row)
        assert int(re.findall("[0-9]+", str(row))[0]) <= lines
    for clip in batch.clips:
        assert readable(clip.prompt, "the prompt") == clip.prompt
    assert len({clip.clip_id for clip in batch.clips}) == len(batch.clips)


@settings(deadline=None)
@given(text=TEXTS | JSON.map(json.dumps))
def test_a_prompt_is_compacted_or_refused(text: str) -> None:
    with bounded():
        try:
            compact_prompt(text)
        except InputError as error:
            assert "\n" not in str(error)


SETTINGS = json.loads(TINY.model_dump_json())
OVERRIDES = st.builds(
    lambda path, value: f"{'.'.join(path)}={value if isinstance(value, str) else json.dumps(value)}",
    st.lists(st.sampled_from([*SETTINGS, "steps", "height", "layout", "extends", ""]), min_size=1, max_size=3),
    JSON,
)
PROFILES = st.one_of(
    TEXTS,
    JSON.map(json.dumps),
    st.dictionaries(st.sampled_from([*SETTINGS, "extends"]), JSON, max_size=4).map(
        lambda some: json.dumps({**SETTINGS, **some})
    ),
    st.lists(
        st.sampled_from(["a: ", "&a ", "*a", "- ", "<<: ", "{", "}", "[", "]", "!!int ", "extends: ", "x\n", "  "])
    ).map("".join),
)


@settings(deadline=None)
@given(text=PROFILES, overrides=st.lists(OVERRIDES, max_size=2))
def test_a_profile_is_read_or_refused(text: str, overrides: list[str], folder: Path) -> None:
    path = folder / "made-up.yaml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    with bounded():
        for name, changes in ((str(path), []), (str(path), overrides), ("tiny", overrides)):
            try:
                load_profile(name, CONFIGS, changes)
            except InputError as error:
                assert len(str(error)) < 2_000


LARGE: dict[str, Callable[[int], str]] = {
    "lines.csv": lambda size: "prompt\n" + "\n" * size,
    "cells.csv": lambda size: "prompt,seed\n" + "," * size,
    "rows of no cells.csv": lambda size: "prompt,seed\n" + ",\n" * (size // 2),
    "marks.csv": lambda size: "prompt,seed\n" + '"' * size,
    "open marks.csv": lambda size: "prompt,seed\n" + '"a\n' * (size // 3),
    "an open mark.csv": lambda size: 'prompt,seed\n"a\n' + "b,1\n" * (size // 4),
    "doubled marks.csv": lambda size: "prompt,seed\n" + '"""\n' * (size // 4),
    "a header.csv": lambda size: "prompt," * (size // 7),
    "blanks.csv": lambda size: " " * size,
    "emoji.csv": lambda size: "prompt\n" + "🎲" * 1_000 + "\n" + "x" * (size - 5_000),
    "lines.jsonl": lambda size: "\n" * size,
    "words.jsonl": lambda size: "x\n" * (size // 2),
    "open objects.jsonl": lambda size: '{"a":\n' * (size // 6),
    "open lists.jsonl": lambda size: '{"a":[\n' * (size // 7),
    "lists.jsonl": lambda size: '{"prompt": "x", "tags": [' + "[]," * (size // 3) + "[]]}",
    "many lists.jsonl": lambda size: ('{"tags": [' + '"ab",' * 9_000 + '"ab"]}\n') * (size // 45_020),
    "brackets.json": lambda size: "[" * size,
    "empty lists.json": lambda size: "[" + "[]," * (size // 3) + "[]]",
    "one string.json": lambda size: '["' + "x" * size + '"]',
    "an open string.json": lambda size: '["' + "\\u0061" * (size // 6),
    "faults.json": lambda size: '["a",\n' + "{x\n" * (size // 3),
    "numbers.json": lambda size: "[" + "9" * size + "]",
    "keys.json": lambda size: '[{"a":1' + ',"a":1' * (size // 6) + "}]",
}


@pytest.mark.faults
@pytest.mark.parametrize("name", LARGE)
def test_a_file_as_large_as_may_be_stays_in_bounds(name: str, folder: Path) -> None:
    content = LARGE[name](MAX_BATCH_BYTES - 100).encode()
    assert len(content) <= MAX_BATCH_BYTES
    read(folder / name, content)
