"""What readers see as the same text is the same text, and what shows nothing is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magi2.errors import InputError
from magi2.inputs.readable import readable, readable_line

SAME = [
    *("A cat", " A cat\n", "A\u00a0cat", "A\u202fcat", "A  cat", "A \t cat", "A\u2800cat", "A\u3164cat", "A cat\u3000"),
    *("\u200bA cat", "A\u200b cat", "A c\u200dat", "A c\u200cat", "A c\u2060at", "\ufeffA cat", "A c\u00adat"),
    *("A\ufe0f cat", "A cat\U000e0100", "A cat\U000e0063\U000e007f", "A cat\u202e", "\u2066A cat\u2069", "A\u061c cat"),
    *(
        "A c\u034fat",
        "A cat\u115f\u1160",
        "A cat\u180e",
        "A cat\u2064",
        "A cat\ufff9",
        "A cat\U0001d173",
        "\r\nA cat\r\n",
    ),
    *("A cat\x0c", "A cat\x0b", "\u2028A cat\u2029", "A cat\x85", "A cat\u17b4", "A\u200d\u200d cat"),
]
MATTERS = {
    "Persian": "می‌خواهم",
    "Urdu, a form without its neighbour": "ہ‍",
    "Hindi": "क्‍ष",
    "Hindi, a joiner that parts": "क्‌ष",
    "Bengali": "র‍্য",
    "Sinhala": "ශ්‍රී",
    "Malayalam": "ക്‍",
    "a family": "👩‍👩‍👧",
    "a flag of many signs": "🏳️‍🌈",
    "a profession with a colour": "👩🏽‍🚀",
    "a heart drawn as a picture": "❤️",
    "a watch drawn as text": "⌚\ufe0e",
    "a key": "1️⃣",
    "the flag of England": "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "a wide blank": "夜の海　静か",
    "Hebrew with vowels": "שָׁלוֹם",
    "old Korean": "\u115f\u1161",
    "Mongolian": "ᠪᠠ᠋",
    "indentation": '{\n  "a": 1\n}',
    "a paragraph": "A cat.\n\nA dog.",
    "private signs among others": "A cat \ue000",
}
NOTHING = [
    *("\u200b", "\u00ad", "\u202e\u202c", "\u200d\u200c", "\ufe0f", "\u034f", "\U000e0041\U000e007f", "\u115f\u1160"),
    *("\u0301", "\u0301 \u0302", "\u2800\u2800", "\u3164", "\uffa0", "\ue000", "\U000f0000", "\u0378", "\U0001d159"),
    *("\u180e", "\u061c", "\u2061", "\u17b4", "\u0600", "\U000e0fff"),
]


@pytest.mark.parametrize("text", SAME, ids=ascii)
def test_texts_that_look_the_same_are_the_same(text: str) -> None:
    assert readable(text, "the prompt") == "A cat"


@pytest.mark.parametrize("case", MATTERS)
def test_what_changes_the_look_of_a_text_is_kept(case: str) -> None:
    assert readable(MATTERS[case], "the prompt") == MATTERS[case]


def test_joiners_and_selectors_without_effect_go() -> None:
    assert readable("می‌ خواهم", "") == "می خواهم"
    assert readable("می‌‌خواهم", "") == readable("می‌خواهم", "")
    assert readable("🙂\ufe0f", "") == "🙂"
    assert readable("1\ufe0f", "") == "1"


def test_a_letter_and_its_mark_are_one_sign_but_for_a_figure_token() -> None:
    assert readable("cafe\u0301", "") == "café"
    assert readable("<Figure 1>\u0338 moves", "") == "<Figure 1>\u0338 moves"
    assert readable("<Figure\u00a01> moves", "") == "<Figure 1> moves"


def test_runs_of_blanks_and_blank_lines_are_as_a_reader_sees_them() -> None:
    assert readable("a  b \n\n \n\n  c\t d \r\n", "") == "a b\n\n  c d"
    assert readable_line(" a\n b\tc ", "") == "a b c"


@pytest.mark.parametrize("text", NOTHING, ids=ascii)
def test_a_text_that_shows_nothing_is_refused(text: str) -> None:
    for written in (text, f" {text}\n{text} "):
        with pytest.raises(InputError, match=r"the prompt (shows nothing|is empty)"):
            readable(written, "the prompt")


@pytest.mark.parametrize("text", ["", " ", "\n\t\u3000\u2003\u2028"], ids=ascii)
def test_an_empty_text_is_refused_as_empty(text: str) -> None:
    with pytest.raises(InputError, match="the name is empty"):
        readable_line(text, "the name")


@pytest.mark.parametrize("sign", ["\0", "\x1b", "\x7f", "\x93", "\ufffd", "\ufffc", "\uffff", "\U0001fffe"], ids=ascii)
def test_control_characters_and_lost_ones_are_named(sign: str) -> None:
    with pytest.raises(InputError, match=rf"the prompt holds U\+{ord(sign):04X}, "):
        readable(f"A cat{sign}", "the prompt")


@pytest.mark.parametrize("text", ["!", "…", "7", "骰", "🎲", "\U0001fae8", "§", "َا"])
def test_a_single_sign_is_a_text(text: str) -> None:
    assert readable(text, "the prompt") == text


def test_ordinary_prompts_stay_as_they_are(golden: Path) -> None:
    lines = [line for path in Path("examples").glob("*.jsonl") for line in path.read_text().splitlines()]
    cases = json.loads((golden / "prompt_enhancement" / "requests.json").read_text())
    prompts = [row["prompt"] for row in [*map(json.loads, lines), *cases] if row.get("prompt", "").strip()]
    assert len(prompts) > 10
    assert [prompt for prompt in prompts if readable(prompt, "the prompt") != prompt.strip()] == []


STRANGE = st.text(
    st.sampled_from([*"ab \n\t", *{sign for text in (*SAME, *MATTERS.values(), *NOTHING) for sign in text}]),
    min_size=1,
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(STRANGE | st.text(max_size=12))
def test_a_readable_text_is_its_own_normal_form(text: str) -> None:
    try:
        once = readable(text, "the prompt")
    except InputError:
        return
    assert readable(once, "the prompt") == once
