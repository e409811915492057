"""The caption models are the wire contract, and completion changes a reply only where it says so."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from magi2.prompts.decode import Task, parse_json
from magi2.prompts.markdown import render_markdown
from magi2.prompts.semantic import MODELS, response_format, schema_of
from magi2.prompts.wire import Completion, validation_problems
from tests.prompts import wire_schema
from tests.prompts.fake_endpoint import case_text
from tests.prompts.prompt_goldens import CASES, reply


def completed(number: int, task: Task) -> tuple[Any, Completion]:
    completion = Completion()
    return completion.complete(parse_json(case_text(number)), schema_of(task)), completion


@pytest.mark.parametrize("task", ["t2v", "i2v"])
def test_wire_schema_equals_the_contract_in_content_and_order(task: Task) -> None:
    contract = wire_schema.load(task)
    for name in ("$schema", "$id", "title"):
        del contract[name]
    assert json.dumps(schema_of(task)) == json.dumps(contract)
    wrapped = response_format(task)["json_schema"]
    assert wrapped == {"name": f"{task.upper()}EnhanceResult", "schema": contract, "strict": True}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_models_accept_exactly_the_wire_valid_cases(case: dict[str, Any]) -> None:
    try:
        value = parse_json(reply(case))
    except ValueError:
        assert case["wire_schema"] == "not JSON"
        return
    try:
        MODELS[case["task"]].model_validate(value)
        verdict = "valid"
    except ValidationError as error:
        assert validation_problems(error)
        verdict = "invalid"
    assert verdict == case["wire_schema"]
    assert (not wire_schema.problems(value, wire_schema.load(case["task"]))) == (verdict == "valid")


@pytest.mark.parametrize(("number", "task"), [(3, "t2v"), (13, "i2v")])
def test_filling_blanks_makes_a_partial_caption_valid_with_unchanged_markdown(number: int, task: Task) -> None:
    value, completion = completed(number, task)
    MODELS[task].model_validate(value)
    assert completion.filled and not completion.dropped
    assert render_markdown(value) == render_markdown(parse_json(case_text(number)))


def test_filling_a_null_layer_adds_only_the_mandatory_duration() -> None:
    value, _ = completed(24, "t2v")
    MODELS["t2v"].model_validate(value)
    added = "# global_layer\n\n## video_metadata\n\nduration:10.0\n\n"
    assert render_markdown(value) == added + render_markdown(parse_json(case_text(24)))


def test_completion_restores_order_drops_strangers_and_makes_counts_whole() -> None:
    completion = Completion()
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "n": {"type": "integer"},
            "l": {"type": "array", "items": {"type": "string"}},
        },
    }
    value = completion.complete({"l": ["x", None], "stranger": 1, "n": 2.0}, schema)
    assert json.dumps(value) == '{"a": "", "n": 2, "l": ["x"]}'
    assert (completion.filled, completion.dropped, completion.coerced) == (["a"], ["stranger", "l[null]"], ["n"])


@pytest.mark.parametrize("value", [True, "3", 2.5, None])
def test_a_count_of_another_type_is_refused(value: object) -> None:
    caption = parse_json(case_text(2))
    caption["dynamic_layer"]["timeline_segments"][0]["objects"][0]["number_of_objects"] = value
    with pytest.raises(ValidationError):
        MODELS["t2v"].model_validate(caption)


def test_a_problem_names_the_place_and_never_the_value() -> None:
    caption = parse_json(case_text(2))
    caption["global_layer"]["context"] = ["secret words"]
    with pytest.raises(ValidationError) as caught:
        MODELS["t2v"].model_validate(caption)
    (line,) = validation_problems(caught.value)
    assert line.startswith("global_layer.context: ") and "secret" not in line
