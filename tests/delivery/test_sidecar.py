"""The sidecar's schema and its reading; what it says of a clip is tested where clips are made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magi2.delivery.sidecar import Sidecar, read_sidecar, sidecar_path, sidecar_schema
from magi2.errors import InputError
from tests.delivery.samples import sidecar

SCHEMA = Path(__file__).parents[2] / "docs" / "sidecar.schema.json"
SIDECAR = sidecar()


def test_published_schema_is_that_of_the_program() -> None:
    published = json.loads(SCHEMA.read_text())
    assert published == sidecar_schema(), "write it again: magi2 explain --schema > docs/sidecar.schema.json"


def test_a_sidecar_reads_back_equal_and_settings_keep_what_is_none(tmp_path: Path) -> None:
    (tmp_path / "clip.json").write_bytes(SIDECAR.to_bytes())
    assert sidecar_path(tmp_path / "clip.mp4") == tmp_path / "clip.json"
    assert read_sidecar(tmp_path / "clip.json") == SIDECAR
    assert b'"cost"' not in SIDECAR.to_bytes() and b'"host"' not in SIDECAR.to_bytes()


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=5,
    ),
    st.sampled_from(sorted(Sidecar.model_fields)),
)
def test_whatever_stands_in_a_field_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, value: object, field: str
) -> None:
    file = tmp_path_factory.getbasetemp() / "odd.json"
    file.write_text(json.dumps(json.loads(SIDECAR.to_bytes()) | {field: value}))
    try:
        read_sidecar(file).to_bytes()
    except InputError as error:
        assert "sidecar" in str(error)


def test_a_field_that_is_missing_is_named(tmp_path: Path) -> None:
    content = json.loads(SIDECAR.to_bytes())
    del content["stored"]
    (tmp_path / "clip.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="stored: Field required"):
        read_sidecar(tmp_path / "clip.json")
