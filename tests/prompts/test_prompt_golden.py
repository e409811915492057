"""The renderers, the strict decoder and the figure arguments reproduce the golden cases byte for byte."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from magi2.prompts.compact import compact_prompt
from magi2.prompts.decode import DecodeError, decode_lenient, decode_strict
from magi2.prompts.figures import add_figure_hint, figure_mentions, parse_image_argument
from magi2.prompts.markdown import render_markdown
from tests.prompts.prompt_goldens import CASES, GOLDEN, reply

HINTS: list[dict[str, Any]] = json.loads((GOLDEN / "prompt_enhancement/figure_hint.json").read_bytes())
MAPS: list[dict[str, Any]] = json.loads((GOLDEN / "prompt_enhancement/figure_map.json").read_bytes())
ENCODER: dict[str, Any] = json.loads((GOLDEN / "text_encoder/prompts.json").read_bytes())
ENCODER_FIGURES: dict[str, Any] = json.loads((GOLDEN / "text_encoder/figure_prompt.json").read_bytes())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_reply_gives_the_golden_markdown_or_error_kind(case: dict[str, Any]) -> None:
    expected = (GOLDEN / "prompt_enhancement" / f"{case['case']}.md").read_bytes()
    if case["reference_result"] == "rendered":
        rendered = render_markdown(decode_strict(reply(case), case["task"])).encode()
        assert rendered == expected
        assert hashlib.sha256(rendered).hexdigest() == case["md_sha256"]
        lenient, repairs = decode_lenient(reply(case), case["task"])
        assert render_markdown(lenient).encode() == expected and not repairs
    else:
        with pytest.raises(DecodeError) as caught:
            decode_strict(reply(case), case["task"])
        assert f"ERROR {caught.value.kind}".encode() == expected.strip()


@pytest.mark.parametrize("case", [case for case in CASES if "compact_sha256" in case], ids=lambda case: case["case"])
def test_json_prompt_gives_the_golden_compact_text(case: dict[str, Any]) -> None:
    expected = (GOLDEN / "prompt_enhancement" / f"{case['case']}.compact.txt").read_bytes()
    assert compact_prompt(reply(case)).encode() == expected


@pytest.mark.parametrize("case", HINTS, ids=lambda case: case["prompt"][:30])
def test_one_image_gives_the_golden_hint(case: dict[str, Any]) -> None:
    hinted = add_figure_hint(case["prompt"], figures=parse_image_argument("a.png"))
    assert hinted == case["after_hint"]
    assert compact_prompt(hinted) == case["encoder_input"]
    assert compact_prompt(hinted).index("<Figure 1>") == case["first_offset_of_<Figure 1>_in_encoder_input"]
    assert add_figure_hint(case["prompt"], figures=()) == case["prompt"]


@pytest.mark.parametrize("case", MAPS, ids=lambda case: str(case["image_argument"]))
def test_image_argument_gives_the_golden_map_in_numeric_order(case: dict[str, Any]) -> None:
    figures = parse_image_argument(case["image_argument"])
    assert {figure.token: figure.source for figure in figures} == case["mapping"]
    numbers = dict(zip(case["encode_order"], case["figure_ids"], strict=True))
    assert {figure.token: figure.number for figure in figures} == numbers
    # The golden order is that of the letters; ours is that of the numbers, so that Figure 2 precedes Figure 10.
    assert [figure.number for figure in figures] == sorted(case["figure_ids"])


@pytest.mark.parametrize("name", ENCODER)
def test_encoder_prompt_is_normalised_as_the_text_encoder_expects(name: str) -> None:
    assert compact_prompt(ENCODER[name]["prompt"]) == ENCODER[name]["normalised"]


def test_encoder_figure_prompts_reproduce() -> None:
    one = parse_image_argument("a.png")
    for name in ("plain_en", "json_struct", "json_list"):
        assert add_figure_hint(ENCODER_FIGURES[name]["in"], figures=one) == ENCODER_FIGURES[name]["out"]
    for case in ENCODER_FIGURES["parse"]:
        assert {figure.token: figure.source for figure in parse_image_argument(case["in"])} == case["out"]


def test_mentions_are_numbers_in_order() -> None:
    assert figure_mentions("<Figure 10> and <Figure 2>, <Figure 2>, <figure 3>") == (2, 10)
