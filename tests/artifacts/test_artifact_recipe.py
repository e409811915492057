from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magi2.artifacts import Recipe, canonical_json, sha256_file, sha256_text
from magi2.artifacts.recipe import Settled
from magi2.errors import InputError

DIGEST = "ab" * 32
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def recipe(**changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "stage": "preview",
        "version": 2,
        "config": {"steps": 8, "guidance_scale": 5.0, "size": [272, 480]},
        "checkpoints": {"preview": DIGEST},
        "seed": 7,
        "external": {"prompt": sha256_text("A cat")},
        "inputs": {"text": "cd" * 32},
    }
    return Recipe(**{**values, **changes})


def test_key_is_the_digest_of_the_canonical_text() -> None:
    made = recipe(external={}, inputs={}, checkpoints={})
    text = (
        '{"checkpoints":{},"config":{"guidance_scale":5,"size":[272,480],"steps":8},"external":{},"inputs":{},'
        '"seed":7,"stage":"preview","version":2}'
    )
    assert made.canonical_json() == text
    assert made.key == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.slow
def test_key_is_the_same_in_another_process() -> None:
    code = "from magi2.artifacts import Recipe; print(Recipe('mux', 1, {'b': 1.5, 'a': '夜'}, seed=3).key)"
    keys = {
        subprocess.run(
            [sys.executable, "-X", "utf8", "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert keys == {Recipe("mux", 1, {"a": "夜", "b": 1.5}, seed=3).key.encode()}


@pytest.mark.parametrize(
    "change",
    [
        {"stage": "refine"},
        {"version": 3},
        {"config": {"steps": 9}},
        {"checkpoints": {"preview": "ef" * 32}},
        {"checkpoints": {"other": DIGEST}},
        {"seed": 8},
        {"seed": None},
        {"external": {"prompt": sha256_text("A dog")}},
        {"inputs": {"text": DIGEST}},
    ],
)
def test_each_field_changes_the_key(change: dict[str, Any]) -> None:
    assert recipe(**change).key != recipe().key
    assert recipe(**change) != recipe()


def test_order_of_mappings_does_not_change_the_key() -> None:
    assert recipe(config={"a": 1, "b": 2}).key == recipe(config={"b": 2, "a": 1}).key
    assert recipe(config={"a": 1}) == recipe(config={"a": 1})
    assert len({recipe(), recipe()}) == 1


@pytest.mark.parametrize(("one", "other"), [(5, 5.0), (0, -0.0), ([1, 2], (1.0, 2)), (10**22, 1e22)])
def test_equal_numbers_have_one_form(one: Any, other: Any) -> None:
    assert recipe(config={"x": one}).key == recipe(config={"x": other}).key


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (0, False), (None, False), ("5", 5), (0.1, 0.1 + 2**-56), ("", None)]
)
def test_different_values_have_different_keys(one: Any, other: Any) -> None:
    assert recipe(config={"x": one}).key != recipe(config={"x": other}).key


@given(JSON_VALUES)
def test_canonical_text_reads_back_to_the_same_canonical_text(value: Any) -> None:
    try:
        text = canonical_json(value)
    except InputError:  # lone surrogates
        return
    assert canonical_json(json.loads(text)) == text


def test_enum_counts_as_the_string_it_stands_for() -> None:
    class Stage(StrEnum):
        PREVIEW = "preview"

    assert recipe(stage=Stage.PREVIEW, config={"x": Stage.PREVIEW}).key == recipe(config={"x": "preview"}).key


def test_later_change_of_the_callers_config_does_not_reach_the_recipe() -> None:
    config: dict[str, Any] = {"sizes": [1, 2]}
    made = recipe(config=config)
    config["sizes"].append(3)
    assert made.key == recipe(config={"sizes": [1, 2]}).key


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"config": {"a": {"b": [1.0, float("nan")]}}}, r"config\.a\.b\[1\]"),
        ({"config": {"a": float("inf")}}, r"config\.a"),
        ({"config": {"a": {1: 2}}}, r"config\.a"),
        ({"config": {"a": object()}}, "object"),
        ({"config": {"a": {1, 2}}}, "set"),
        ({"config": {"a": b"bytes"}}, "bytes"),
        ({"config": {"a": "\ud800"}}, "Unicode"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**53}, "seed"),
        ({"seed": 1.0}, "seed"),
        ({"seed": True}, "seed"),
        ({"version": 0}, "version"),
        ({"version": "1"}, "version"),
        ({"stage": "../x"}, "stage"),
        ({"inputs": {"text": "short"}}, r"inputs\.text"),
        ({"checkpoints": {"preview": DIGEST.upper()}}, r"checkpoints\.preview"),
        ({"external": {"prompt": None}}, r"external\.prompt"),
    ],
)
def test_value_that_cannot_be_in_a_key_is_named(change: dict[str, Any], place: str) -> None:
    with pytest.raises(InputError, match=place):
        recipe(**change)


def test_file_digest_is_the_digest_of_its_bytes(tmp_path: Any) -> None:
    path = tmp_path / "file"
    path.write_bytes("夜".encode())
    assert sha256_file(path) == sha256_text("夜") == hashlib.sha256("夜".encode()).hexdigest()


@pytest.mark.slow
def test_package_is_imported_without_torch_and_pydantic() -> None:
    code = "import sys, magi2.artifacts; assert not {'torch', 'pydantic', 'sqlalchemy', 'airflow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20)


def test_settled_settings_give_the_keys_of_their_values_and_are_shared_by_recipes() -> None:
    values = {"guidance_scale": 5.0, "size": (272, 480), "inner": {"steps": 8.0}}
    settled = Settled.of(values, "config")
    assert recipe(config=settled).key == recipe(config=values).key
    assert recipe(config=settled).config is settled and json.loads(json.dumps(settled)) == recipe(config=values).config
    with pytest.raises(InputError, match=r"config\.scale"):
        Settled.of({"scale": float("nan")}, "config")
