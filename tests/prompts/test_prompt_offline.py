"""The structurer: deterministic, valid, loses nothing, invents nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from magi2.errors import InputError
from magi2.prompts import Figure, enhance
from magi2.prompts.offline import structure
from magi2.prompts.offline.entities import find_subjects
from magi2.prompts.offline.quotes import find_quotations
from magi2.prompts.offline.text import hide, normalise
from magi2.prompts.offline.units import split_units
from tests.prompts import wire_schema

STILL = (Figure(1, "<Figure 1>", "a.png"),)


def offline(prompt: str, **options: Any) -> Any:
    return enhance(prompt, mode="offline", aspect_ratio="16:9", **options)


def t2v(prompt: str) -> Any:
    return structure(prompt, has_image=False, aspect_ratio="16:9")


def units(prompt: str) -> list[str]:
    text = normalise(prompt)
    pieces, _ = split_units(text, hide(text, [(quote.start, quote.end) for quote in find_quotations(text)]))
    assert "".join(text[unit.start : unit.end] for unit in pieces) == text
    return [text[unit.start : unit.end].strip() for unit in pieces]


def spans(prompt: str) -> list[str]:
    segments = t2v(prompt)["dynamic_layer"]["timeline_segments"]
    return [segment["segment_basic_info"]["timestamp_range"] for segment in segments]


def movement(prompt: str) -> tuple[str, ...]:
    segment = t2v(prompt)["dynamic_layer"]["timeline_segments"][0]
    return tuple(segment["segment_basic_info"]["camera_delta"]["camera_movement"].values())


# ---- promises over any text

ANY_TEXT = st.text(max_size=300) | st.lists(
    st.sampled_from(
        [
            "a cat", "two dogs", "一只猫", "“", "”", '"', "「", "」", "‘", "’", ". ", "。", "\n", ", then ", "然后",
            "says ", "sign reads ", "写着", "0-3s ", "[00:02] ", "Shot 2: ", "镜头二:", "👩‍👩‍👧", "مرحبا", "e\u0301",
            "<Figure 1>",
            "\u0338", "\x00", "\u200b", "\ufeff", "\u2028", "camera pans left ", "event 1 ", "<subject 4>", "|", "\\n",
            "#",
            "{", "}",
        ]
    ),
    max_size=40,
).map("".join)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(prompt=ANY_TEXT, has_image=st.booleans())
@example(prompt="<Figure 1>\u0338 stays", has_image=True)
@example(prompt='{"a": 1}', has_image=False)
@example(prompt="", has_image=True)
@example(prompt="# global layer", has_image=False)
def test_any_text_keeps_every_character_and_gives_a_valid_repeatable_caption(prompt: str, has_image: bool) -> None:
    figures = STILL if has_image else ()
    wanted = "".join(normalise(prompt).split())
    try:
        caption = offline(prompt, images=figures)
    except InputError:
        assert not wanted or ("<Figure" in prompt and not has_image)
        return
    assert caption.text.strip() and caption.repairs == () and not caption.fallback
    assert wanted in "".join(caption.text.split())
    assert caption.to_json() == offline(prompt, images=figures).to_json()
    again = offline(caption.text, images=figures)
    assert again.text == caption.text
    if caption.data is not None:
        task = "i2v" if has_image else "t2v"
        assert not wire_schema.problems(caption.data, wire_schema.load(task))
        assert not wire_schema.problems(caption.data, wire_schema.load(f"{task}.semantic"))


@settings(max_examples=50, deadline=None)
@given(prompt=ANY_TEXT)
def test_the_json_form_is_a_fixed_point_too(prompt: str) -> None:
    try:
        first = offline(prompt, compact_format="json")
    except InputError:
        return
    second = offline(first.text, compact_format="json")
    assert (second.text, second.data) == (first.text, first.data) and second.repairs == ()


@pytest.mark.parametrize("text", ["a. ", '"x" says. ', "然后跑。", "word " * 3, "“", "🙂 ", "0-3s x "])
def test_twenty_thousand_characters_are_quick_and_complete(text: str) -> None:
    prompt = (text * 20_000)[:20_000]
    caption = offline(prompt)
    assert "".join(normalise(prompt).split()) in "".join(caption.text.split())
    assert len(caption.data["dynamic_layer"]["timeline_segments"]) <= 6


@pytest.mark.slow
def test_bytes_do_not_depend_on_hash_order_or_locale() -> None:
    code = (
        "from magi2.prompts import enhance; import sys;"
        "sys.stdout.buffer.write(enhance('一只猫 says “hi”, then two dogs bark in the rain, cinematic', mode='offline',"
        " aspect_ratio='16:9').to_json())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, check=True, timeout=60
        ).stdout
        for env in ({"PYTHONHASHSEED": "1", "LC_ALL": "C"}, {"PYTHONHASHSEED": "2", "TZ": "Asia/Tokyo"})
    }
    assert len(outputs) == 1


# ---- step by step


def test_normalisation_composes_folds_and_keeps_figure_tokens() -> None:
    assert normalise("\ufeff cafe\u0301 \t x\r\n\r\ny\u2028z\x07 ") == "caf\u00e9 x\ny\nz"
    assert normalise("<Figure 1>\u0338") == "<Figure 1>\u0338"


@pytest.mark.parametrize(
    ("prompt", "kinds"),
    [
        ('She says "hello there"', ["speech"]),
        ('"Hello," she whispers.', ["speech"]),
        ("老人说:“慢慢吃”", ["speech"]),
        ("孩子喊「快跑」", ["speech"]),
        ("她笑了\uff01老人说\uff1a“慢慢吃”", ["speech"]),
        ("老人说完就走\uff01“奇怪”", ["prose"]),
        ("A neon sign reads “OPEN”", ["text"]),
        ('"SALE" banner over the door', ["text"]),
        ("墙上写着『出口』", ["text"]),
        ("字幕:“完”", ["text"]),
        ('A sign reads "OPEN" and she says "Come in"', ["text", "speech"]),
        ('the so-called "artist" paints', ["prose"]),
        ("街道上的“老地方”", ["prose"]),
        ("‘don’t go’ she says", ["speech"]),
        ("It's Tom's dog's ball", []),
        ('a 6" nail and a 7" screw', []),
        ("an “unbalanced quote", []),
        ('She waves. "odd" thing', ["prose"]),
        ('""', []),
    ],
)
def test_quotations_are_told_apart_by_the_words_nearby(prompt: str, kinds: list[str]) -> None:
    assert [quotation.kind for quotation in find_quotations(normalise(prompt))] == kinds


@pytest.mark.parametrize(
    ("prompt", "pieces"),
    [
        ("A cat sits. It jumps.", ["A cat sits.", "It jumps."]),
        ("A cat sits, then jumps and then sleeps", ["A cat sits,", "then jumps", "and then sleeps"]),
        ("猫坐着,然后跳下。接着睡觉,最后醒来", ["猫坐着,", "然后跳下。", "接着睡觉,", "最后醒来"]),
        ("She stands next to a tree, next to Dr. Who.", ["She stands next to a tree, next to Dr. Who."]),
        ("A value of 3.5 m", ["A value of 3.5 m"]),
        ('He says "Stop. Now then." and waits', ['He says "Stop. Now then." and waits']),
        ("最后一个人走了", ["最后一个人走了"]),
        ("快跑\uff01他停下\uff1b猫呢\uff1f", ["快跑\uff01", "他停下\uff1b", "猫呢\uff1f"]),
        ("镜头一\uff1a猫。镜头二\uff1a狗", ["镜头一\uff1a猫。", "镜头二\uff1a狗"]),
        ("a;b!c", ["a;b!c"]),
        ("Since then nothing", ["Since then nothing"]),
        ("Wait... what?!", ["Wait...", "what?!"]),
        ("!!! ... !!!", ["!!! ... !!!"]),
        ("one\ntwo", ["one", "two"]),
        ("A 3-5 second clip of a cat", ["A 3-5 second clip of a cat"]),
        ("镜头一直跟随她", ["镜头一直跟随她"]),
        ("Anime. Shot 1: a cat. It sits. Shot 2: a dog", ["Anime. Shot 1: a cat. It sits.", "Shot 2: a dog"]),
        ("镜头一:猫。镜头二:狗", ["镜头一:猫。", "镜头二:狗"]),
    ],
)
def test_event_units_split_where_a_reader_would(prompt: str, pieces: list[str]) -> None:
    assert units(prompt) == pieces


def test_more_than_six_units_merge_the_shortest_neighbours() -> None:
    long = "The red fox runs across the whole field."
    prompt = f"{long} {long} {long} Hop. Hop. {long} {long}"
    assert units(prompt) == [long, long, long, "Hop. Hop.", long, long]
    assert units(f"{prompt} {long}") == [long, long, f"{long} Hop. Hop.", long, long, long]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("0-3s: a. 3-8s: b. 8-15s: c.", ["00:00.0-00:02.0", "00:02.0-00:05.3", "00:05.3-00:10.0"]),
        ("[00:00] a [00:02] b [00:05] c", ["00:00.0-00:02.0", "00:02.0-00:05.0", "00:05.0-00:10.0"]),
        ("A start. [00:04] b [00:07] c", ["00:00.0-00:04.0", "00:04.0-00:07.0", "00:07.0-00:10.0"]),
        ("00:00-00:10 a 00:10-00:20 b", ["00:00.0-00:05.0", "00:05.0-00:10.0"]),
        ("\uff080-4秒\uff09猫\u30104\uff5e10秒\u3011狗", ["00:00.0-00:04.0", "00:04.0-00:10.0"]),
        ("0到4秒 猫 4到10秒 狗", ["00:00.0-00:04.0", "00:04.0-00:10.0"]),
        ("3-5s a 1-2s b", ["00:00.0-00:05.0", "00:05.0-00:10.0"]),
        ("A cat. A dog. A fox.", ["00:00.0-00:03.3", "00:03.3-00:06.6", "00:06.6-00:10.0"]),
    ],
)
def test_marked_times_are_rescaled_and_others_take_the_grid(prompt: str, expected: list[str]) -> None:
    assert spans(prompt) == expected


def test_word_lists_fill_fields_in_both_languages_and_nothing_else() -> None:
    scene = t2v("An anime cat at sunset in the rain, teal and orange, macro, calm, neon light, with birdsong")[
        "global_layer"
    ]
    assert scene["aesthetics"]["style"] == "anime" and scene["aesthetics"]["mood_atmosphere"] == "calm"
    assert scene["aesthetics"]["color_scheme"] == "teal and orange"
    assert scene["lighting_baseline"]["conditions"] == "neon light; dusk"
    assert scene["environment_baseline"]["background_setting"] == "rain"
    assert scene["camera_cinematography"]["lens_focal_length"] == "macro"
    assert scene["audio_baseline"]["ambience"] == "birdsong"
    chinese = t2v("水墨风格,黄昏,大雪,广角,宁静,暖色,雨声")["global_layer"]
    assert chinese["aesthetics"]["style"] == "ink wash painting" and chinese["aesthetics"]["mood_atmosphere"] == "calm"
    assert chinese["environment_baseline"]["background_setting"] == "snow"
    empty = t2v("Something happens")["global_layer"]
    filled = [value for value in json.dumps(empty).split('"') if value.isalpha() and value in ("anime", "calm", "rain")]
    assert filled == [] and empty["context"] == "" and empty["alive_subjects_static"] == []


def test_quoted_words_feed_no_word_list() -> None:
    assert t2v('A sign reads "anime sunset"')["global_layer"]["aesthetics"]["style"] == ""


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("The camera slowly pans left over a hill", ("pan", "left", "subtle")),
        ("Quick zoom in on a face", ("zoom", "forward", "strong")),
        ("镜头缓缓推近", ("dolly", "forward", "subtle")),
        ("右摇,快速", ("pan", "right", "strong")),
        ("A handheld shot", ("handheld drift", "", "")),
        ("A frying pan on the left", ("static", "fixed", "steady")),
        ("Static camera on a tripod", ("static", "fixed", "steady")),
    ],
)
def test_camera_words_give_type_direction_and_intensity(prompt: str, expected: tuple[str, ...]) -> None:
    assert movement(prompt) == expected


@pytest.mark.parametrize(
    ("prompt", "phrases"),
    [
        ("A young woman in red walks two big dogs", ["A young woman", "two big dogs"]),
        ("two cat", []),
        ("a dog house, a cat toy, a bear's den", []),
        ("the man sleeps", []),
        ("a picture of a fox", ["a fox"]),
        ("一只黑色的猫和三个孩子", ["一只黑色的猫", "三个孩子"]),
        ("一个人工湖", []),
        ("一只\uff0c白色的猫", []),
        ("A cat meets a cat", ["A cat"]),
        ("a mountain", []),
    ],
)
def test_only_confident_noun_phrases_become_subjects(prompt: str, phrases: list[str]) -> None:
    assert [subject.phrase for subject in find_subjects(prompt)] == phrases


def test_subjects_carry_the_users_words_and_no_inferred_traits() -> None:
    caption = t2v("An old woman feeds two cats. The cats eat.")
    woman, cats = caption["global_layer"]["alive_subjects_static"]
    assert woman["description"] == "An old woman" and cats["subject_id"] == "<subject 2>"
    assert set(woman["visual_attributes"].values()) == {""}
    second = caption["dynamic_layer"]["timeline_segments"][1]["alive_subjects"]
    assert [(entry["subject_id"], entry["number_of_subjects"]) for entry in second] == [("<subject 2>", 2)]


def test_speech_has_language_speaker_and_spread_times() -> None:
    caption = t2v("A man says “你好” and says “再见”.")
    assert caption["global_layer"]["audio_baseline"]["dialogue"] == {
        "language": "Chinese",
        "speaker_tags": ["<subject 1>"],
    }
    lines = caption["dynamic_layer"]["timeline_segments"][0]["audio"]["dialogue_lines"]
    assert [(line["timestamp"], line["text"]) for line in lines] == [
        ("00:00.0-00:05.0", "你好"),
        ("00:05.0-00:10.0", "再见"),
    ]
    narrated = t2v('A man and a woman. Someone says "Bonjour, je suis le roi"')["global_layer"]["audio_baseline"]
    assert narrated["dialogue"] == {"language": "French", "speaker_tags": ["Narrator"]}


def test_readable_text_fills_its_segment() -> None:
    segment = t2v('Night. A neon sign reads "OPEN".')["dynamic_layer"]["timeline_segments"][1]
    assert segment["text_render"][0]["text"] == "OPEN"
    assert segment["text_render"][0]["timestamp"] == "00:05.0-00:10.0"


def test_an_image_gives_one_shot_that_claims_nothing_about_the_still() -> None:
    caption = offline('A man says "Hi. Bye." A sign reads "EXIT". Then he leaves.', images=STILL).data
    (shot,) = caption["shot_timeline"]
    assert shot["time_range_seconds"] == [0.0, 10.0] and shot["audio_event_identifiers"] == ["speech_1"]
    assert [entry["reference_identifier"] for entry in caption["reference_bank"]] == ["still"]
    assert caption["audio_event_timeline"][0]["spoken_text"] == "Hi. Bye."
    assert caption["visible_text"][0]["text"] == "EXIT"
    assert any('"EXIT"' in line for line in caption["global_caption"]["continuity_requirements"])


def test_an_image_with_marked_cuts_gives_a_shot_each() -> None:
    caption = offline("0-4s he waits 4-10s he runs", images=STILL).data
    assert [shot["time_range_seconds"] for shot in caption["shot_timeline"]] == [[0.0, 4.0], [4.0, 10.0]]


def test_a_blank_prompt_with_an_image_is_one_quiet_shot_and_without_one_is_refused() -> None:
    assert "Gentle ambient motion" in offline("  ", images=STILL).text
    with pytest.raises(InputError):
        offline(" \n ")
    with pytest.raises(InputError):
        offline("\x00\x07")


@pytest.mark.parametrize("premise", ["context", "context: abstract animation"])
def test_compact_text_is_a_caption_already_and_passes_unchanged(premise: str) -> None:
    compact = f"{premise}\nA ball rolls.\naudio: ambience=a low tone\ntimeline:\n - 00:00.0-00:10.0 The ball rolls."
    assert offline(compact).text == compact


def test_prose_that_begins_like_compact_text_is_structured() -> None:
    prose = "context matters to a painter.\ntimeline:\nHe paints."
    assert offline(prose).text != prose
    assert offline("context: a painter.\nHe paints.").text.startswith("# global_layer")
