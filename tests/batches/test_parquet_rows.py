"""Parquet files: typed rows within limits, and one sentence for those that are none or would end the process."""

from __future__ import annotations

import io
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from magi2.batches import parquet_child, parquet_rows
from magi2.batches.batch_file import read_batch, read_rows
from magi2.batches.parquet_child import unpacked
from magi2.config.profiles import Profiles
from magi2.errors import ConfigError, InputError
from tests.render_helpers import CONFIGS

pa = pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
pq = pytest.importorskip("pyarrow.parquet")


def written(columns: dict[str, Any], **options: Any) -> bytes:
    target = io.BytesIO()
    pq.write_table(pa.table(columns), target, **options)
    return target.getvalue()


def unpack(content: bytes, max_rows: int = 100, max_bytes: int = 2**20) -> list[dict[str, Any]]:
    return list(unpacked(content, max_rows, max_bytes))


def test_rows_are_typed_and_gaps_are_left_open() -> None:
    content = written(
        {
            "prompt": pa.array(["a kite", "a boat"]).dictionary_encode(),
            "seed": [7.0, float("nan")],
            "tags": [["a", "b"], None],
            "image": [{"<Figure 1>": "a.png", "<Figure 2>": None}, None],
            "priority": pa.array([3, None], pa.int8()),
        }
    )
    first, second = unpack(content)
    image = {"<Figure 1>": "a.png"}
    assert first == {"prompt": "a kite", "seed": 7, "tags": ["a", "b"], "image": image, "priority": 3}
    assert type(first["seed"]) is int
    assert second == {"prompt": "a boat", **dict.fromkeys(("seed", "tags", "image", "priority"))}


@pytest.mark.parametrize("content", [b"", b"PAR1", b"prompt\na kite\n", b"PAR1" + b"\0" * 50 + b"PAR1"])
def test_file_that_is_none_is_refused_in_one_sentence(content: bytes) -> None:
    with pytest.raises(ValueError, match="is no Parquet file or is damaged") as caught:
        unpack(content)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([date(2026, 1, 1)], "date32"),
        ([b"a kite"], "binary"),
        ([[date(2026, 1, 1)]], "list<.*date32"),
        ([{"a": b"x"}], "struct<.*binary"),
    ],
)
def test_column_of_another_kind_is_refused_by_its_name_and_type(values: list[Any], kind: str) -> None:
    with pytest.raises(ValueError, match=f"the column 'when' holds {kind}"):
        unpack(written({"prompt": ["a kite"], "when": values}))


def test_column_that_stands_twice_is_refused() -> None:
    target = io.BytesIO()
    pq.write_table(pa.table([["a"], ["b"]], names=["prompt", "prompt"]), target)
    with pytest.raises(ValueError, match="the column 'prompt' twice"):
        unpack(target.getvalue())


def test_rows_and_bytes_are_limited_by_what_the_file_says_before_they_are_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parquet_child, "_check_columns", lambda schema: pytest.fail("unpacked"))
    with pytest.raises(ValueError, match="has 11 rows, at most 10"):
        unpack(written({"prompt": ["a"] * 11}), max_rows=10)
    large = written({"prompt": [f"{n}" + "a" * 2**14 for n in range(8)]}, compression="zstd")
    assert len(large) < 2**14
    with pytest.raises(ValueError, match=r"has \d+ bytes when unpacked, at most 65536"):
        unpack(large, max_bytes=2**16)


def test_text_that_the_file_holds_once_and_every_row_repeats_is_counted_in_each() -> None:
    content = written({"prompt": ["a" * 2**16] * 1000}, compression="none")
    assert len(content) < 2**18
    with pytest.raises(ValueError, match="row 16: the rows until here have more than 1048576 characters"):
        unpack(content, max_rows=1000)


def test_without_the_extra_one_sentence_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr(parquet_rows, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'magi2\[parquet\]'"):
        read_rows(tmp_path / "a.parquet")


@pytest.mark.slow
def test_clips_are_those_of_the_same_rows_in_json_and_a_bad_row_costs_itself_alone(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(written({"prompt": ["a kite", "a boat", ""], "seed": [1, None, 2]}))
    (tmp_path / "a.jsonl").write_text('{"prompt": "a kite", "seed": 1}\n{"prompt": "a boat"}\n')
    table, lines = (read_batch(tmp_path / name, Profiles(CONFIGS, "tiny")) for name in ("a.parquet", "a.jsonl"))
    assert [clip.clip_id for clip in table.clips] == [clip.clip_id for clip in lines.clips]
    assert [row.where for row in table.bad_rows] == ["row 3"]


@pytest.mark.slow
def test_file_over_which_the_library_ends_its_process_is_refused_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = tmp_path / "dying.py"
    dying.write_text("import os\nos.abort()\n")
    monkeypatch.setattr(parquet_child, "__file__", str(dying))
    (tmp_path / "a.parquet").write_bytes(written({"prompt": ["a kite"]}))
    with pytest.raises(InputError, match=r"a\.parquet: unreadable: is damaged: what unpacks it ended halfway"):
        read_rows(tmp_path / "a.parquet")


@pytest.mark.faults
@pytest.mark.slow
def test_every_cut_and_every_changed_byte_is_refused_in_a_sentence_or_read(tmp_path: Path) -> None:
    content = written({"prompt": ["a kite", "a boat"], "seed": [1, 2]}, write_page_checksum=True)
    refused = 0
    for at in range(0, len(content), 29):
        changed = bytearray(content)
        changed[at] ^= 0x55
        for damaged in (bytes(changed), content[:at]):
            (tmp_path / "a.parquet").write_bytes(damaged)
            try:
                read_rows(tmp_path / "a.parquet")
            except InputError as error:
                refused += 1
                assert "\n" not in str(error) and len(str(error)) < 400
    assert refused > len(content) / 29
