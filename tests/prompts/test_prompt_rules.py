"""Every semantic rule: what breaks it, how it is mended, and that a mended caption stays as it is."""

from __future__ import annotations

import copy
import json
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magi2.prompts.clock import default_spans, format_instant, format_span, parse_instant, parse_span, spread
from magi2.prompts.decode import Task, parse_json
from magi2.prompts.findings import RuleContext
from magi2.prompts.semantic import CheckedCaption, check_caption
from tests.prompts import wire_schema
from tests.prompts.fake_endpoint import case_text

Caption = dict[str, Any]
PROMPT = (
    "A clockmaker says: There, he keeps better time than I do. The narrator says: He did. A card reads: Back at 3. "
    "A man shouts 开船喽! and a stencil reads 海燕 07"
)


def check(caption: Caption, task: Task = "t2v", prompt: str | None = PROMPT, ratio: str = "4:3") -> CheckedCaption:
    return check_caption(caption, task, RuleContext(ratio, prompt))


def rules(checked: CheckedCaption, outcome: str) -> set[str]:
    return {finding.rule for finding in checked.findings if finding.outcome == outcome}


def mended(caption: Caption, rule: str, task: Task = "t2v", **context: Any) -> Any:
    """The repaired caption, after checking that this rule was reported as repaired and that repair is final."""
    checked = check(copy.deepcopy(caption), task, **context)
    assert rule in rules(checked, "repaired"), checked.findings
    again = check(checked.data or {}, task, **context)
    assert again.data == checked.data and not rules(again, "repaired")
    assert not wire_schema.problems(checked.data, wire_schema.load(f"{task}.semantic"))
    return checked.data


@pytest.fixture
def t2v() -> Caption:
    return dict(parse_json(case_text(2)))


@pytest.fixture
def i2v() -> Caption:
    caption = dict(parse_json(case_text(12)))
    caption["global_caption"]["continuity_requirements"].append("the stencil 海燕 07 keeps its shape")
    return caption


def segments(caption: Caption) -> list[Caption]:
    return list(caption["dynamic_layer"]["timeline_segments"])


def ranges(caption: Caption) -> list[str]:
    return [segment["segment_basic_info"]["timestamp_range"] for segment in segments(caption)]


def test_good_captions_break_no_rule(t2v: Caption, i2v: Caption) -> None:
    assert check(t2v).findings == () and check(t2v).data == t2v
    assert check(i2v, "i2v").findings == () and check(i2v, "i2v").data == i2v


# ---- text to video


def test_t1_shuffled_segments_are_sorted_and_laid_on_the_grid(t2v: Caption) -> None:
    last, first, middle = segments(t2v)  # as they will be timed
    for segment, span in ((first, "00:00.0-00:02.0"), (middle, "00:02.0-00:04.0"), (last, "00:05.0-00:09.0")):
        segment["segment_basic_info"]["timestamp_range"] = span
        segment["objects"] = segment["objects"][:1]
        for key in ("alive_subjects", "text_render", "causal_events", "objects"):
            for item in segment[key]:
                item["timestamp" if "timestamp" in item else "timestamp_range"] = span
        for line in segment["audio"]["dialogue_lines"]:
            line["timestamp"] = span
        segment["audio"]["special_audio_events"] = segment["audio"]["ambience_deltas"] = []
    fixed = mended(t2v, "T1")
    assert ranges(fixed) == ["00:00.0-00:03.3", "00:03.3-00:06.6", "00:06.6-00:10.0"]
    words = [segment["segment_basic_info"]["segment_description"] for segment in segments(fixed)]
    # The second segment of the original now comes first; its event is event 1 by T8.
    assert "strikes the hour in event 1" in words[0] and "speaks" in words[1] and "in event 2" in words[2]
    assert all(item["timestamp"] == "00:06.6-00:10.0" for item in segments(fixed)[2]["alive_subjects"])


def test_t1_loose_notation_is_rewritten(t2v: Caption) -> None:
    segments(t2v)[0]["segment_basic_info"]["timestamp_range"] = "0:00 - 3.3s"
    assert ranges(mended(t2v, "T1"))[0] == "00:00.0-00:03.3"


@pytest.mark.parametrize("count", [0, 7])
def test_t1_no_or_too_many_segments_are_beyond_repair(t2v: Caption, count: int) -> None:
    t2v["dynamic_layer"]["timeline_segments"] = segments(t2v)[:1] * count
    checked = check(t2v)
    assert checked.data is None and rules(checked, "fatal") == {"T1"}


def test_t1_a_segment_without_words_is_beyond_repair(t2v: Caption) -> None:
    segments(t2v)[1]["segment_basic_info"]["segment_description"] = " "
    assert "T1" in rules(check(t2v), "fatal")


def test_t2_times_outside_their_segment_are_clamped(t2v: Caption) -> None:
    segments(t2v)[0]["objects"][0]["timestamp"] = "00:01.0-00:09.0"
    segments(t2v)[0]["audio"]["special_audio_events"] = [
        {"timestamp": "00:08.0", "sound_description": "click", "visual_sync": ""},
        {"timestamp": "00:01.0-00:02.0", "sound_description": "tick", "visual_sync": ""},
        {"timestamp": "soon", "sound_description": "tock", "visual_sync": ""},
    ]
    fixed = segments(mended(t2v, "T2"))[0]
    assert fixed["objects"][0]["timestamp"] == "00:01.0-00:03.3"
    assert [sound["timestamp"] for sound in fixed["audio"]["special_audio_events"]] == ["00:03.3", "00:01.0", "00:00.0"]


@pytest.mark.parametrize("written", ["00:03.0-00:01.0", "00:02.0-00:02.0", "early", ""])
def test_t3_an_empty_or_unreadable_span_becomes_the_segment(t2v: Caption, written: str) -> None:
    segments(t2v)[0]["objects"][0]["timestamp"] = written
    assert segments(mended(t2v, "T3"))[0]["objects"][0]["timestamp"] == "00:00.0-00:03.3"


def test_t4_t5_duration_and_ratio_are_the_jobs(t2v: Caption) -> None:
    t2v["global_layer"]["video_metadata"] = {"duration": 8, "aspect_ratio": "wide"}
    assert mended(t2v, "T4", ratio="9:16")["global_layer"]["video_metadata"] == {
        "duration": 10.0,
        "aspect_ratio": "9:16",
    }
    assert "T5" in rules(check(t2v), "repaired")


def test_t6_entities_are_numbered_without_gaps_and_mentions_follow(t2v: Caption) -> None:
    text = json.dumps(t2v).replace("<subject 2>", "<subject 7>").replace("<object 1>", "<object 3>")
    fixed = mended(json.loads(text), "T6")
    swapped = json.dumps(fixed)
    assert "<subject 7>" not in swapped and "<object 3>" not in swapped
    # Objects 3, 2 become 1, 2: the caption is the original again.
    assert fixed == check(t2v).data


def test_t6_swapped_numbers_are_renamed_at_once(t2v: Caption) -> None:
    text = json.dumps(t2v).replace("<object 1>", "<object X>").replace("<object 2>", "<object 1>")
    assert mended(json.loads(text.replace("<object X>", "<object 2>")), "T6") == t2v


def test_t6_a_repeated_identifier_gets_a_number_of_its_own(t2v: Caption) -> None:
    t2v["global_layer"]["objects_static"].append(dict(t2v["global_layer"]["objects_static"][0]))
    ids = [entry["object_id"] for entry in mended(t2v, "T6")["global_layer"]["objects_static"]]
    assert ids == ["<object 1>", "<object 2>", "<object 3>"]


def test_t6_spoken_and_readable_words_are_never_rewritten(t2v: Caption) -> None:
    text = json.dumps(t2v).replace("<subject 2>", "<subject 7>")
    caption = json.loads(text)
    segments(caption)[2]["audio"]["dialogue_lines"][0]["text"] = "I saw <subject 7>"
    fixed = mended(caption, "T6", prompt=None)
    assert segments(fixed)[2]["audio"]["dialogue_lines"][0]["text"] == "I saw <subject 7>"


def test_t7_strangers_get_a_stub_blanks_go_and_loose_names_are_matched(t2v: Caption) -> None:
    first = segments(t2v)[0]
    first["objects"][0]["object_id"] = "Object 1"
    first["objects"].append({**copy.deepcopy(first["objects"][0]), "object_id": "lamp"})
    first["alive_subjects"].append({**copy.deepcopy(first["alive_subjects"][0]), "subject_id": " "})
    fixed = mended(t2v, "T7")
    assert [entry["object_id"] for entry in fixed["global_layer"]["objects_static"]][2:] == ["<object 3>"]
    assert [entry["object_id"] for entry in segments(fixed)[0]["objects"]] == ["<object 1>", "<object 2>", "<object 3>"]
    assert len(segments(fixed)[0]["alive_subjects"]) == 1


def test_t7_a_speaking_subject_stands_in_the_static_list() -> None:
    caption = parse_json(case_text(4))
    fixed = mended(caption, "T7", prompt=None)
    assert [s["subject_id"] for s in fixed["global_layer"]["alive_subjects_static"]] == ["<subject 1>", "<subject 2>"]


def test_t8_events_are_counted_over_the_whole_caption(t2v: Caption) -> None:
    second = segments(t2v)[1]
    second["causal_events"][0]["event_id"] = "event 1"
    info = second["segment_basic_info"]
    info["segment_description"] = info["segment_description"].replace("event 2", "event 1")
    fixed = mended(t2v, "T8")
    assert [event["event_id"] for s in segments(fixed) for event in s["causal_events"]] == ["event 1", "event 2"]
    assert "event 2" in segments(fixed)[1]["segment_basic_info"]["segment_description"]
    assert "event 1" in segments(fixed)[0]["segment_basic_info"]["segment_description"]


def test_t9_speakers_are_tags_and_tags_are_unique(t2v: Caption) -> None:
    t2v["global_layer"]["audio_baseline"]["dialogue"]["speaker_tags"] = ["<subject 1>", "", "<subject 1>"]
    segments(t2v)[2]["audio"]["dialogue_lines"][1]["speaker"] = ""
    fixed = mended(t2v, "T9")
    assert fixed["global_layer"]["audio_baseline"]["dialogue"]["speaker_tags"] == ["<subject 1>", "Narrator"]


def test_t10_language_and_tags_follow_the_speech(t2v: Caption) -> None:
    t2v["global_layer"]["audio_baseline"]["dialogue"]["language"] = ""
    assert mended(t2v, "T10")["global_layer"]["audio_baseline"]["dialogue"]["language"] == "English"
    segments(t2v)[2]["audio"]["dialogue_lines"] = []
    dialogue = mended(t2v, "T10")["global_layer"]["audio_baseline"]["dialogue"]
    assert dialogue == {"language": "", "speaker_tags": []}


def test_t11_a_description_without_its_identifiers_is_reported(t2v: Caption) -> None:
    segments(t2v)[0]["segment_basic_info"]["segment_description"] = "Somebody does something."
    checked = check(t2v)
    assert checked.data is not None and rules(checked, "reported") == {"T11"}


def test_t12_readable_text_is_quoted_once_in_the_description(t2v: Caption) -> None:
    info = segments(t2v)[1]["segment_basic_info"]
    written = info["segment_description"]
    info["segment_description"] = written.replace("Back at 3", "something")
    fixed = segments(mended(t2v, "T12"))[1]["segment_basic_info"]["segment_description"]
    assert fixed.endswith('The readable text is "Back at 3".')
    info["segment_description"] = written + " Back at 3."
    assert "T12" in rules(check(t2v), "reported")


def test_t13_readable_text_is_held_for_a_second(t2v: Caption) -> None:
    segments(t2v)[1]["text_render"][0]["timestamp"] = "00:06.4-00:06.6"
    assert segments(mended(t2v, "T13"))[1]["text_render"][0]["timestamp"] == "00:05.6-00:06.6"


def test_t14_counts_are_at_least_one(t2v: Caption) -> None:
    segments(t2v)[0]["objects"][0]["number_of_objects"] = 0
    segments(t2v)[0]["alive_subjects"][0]["number_of_subjects"] = -2
    fixed = segments(mended(t2v, "T14"))[0]
    assert fixed["objects"][0]["number_of_objects"] == fixed["alive_subjects"][0]["number_of_subjects"] == 1


def test_t15_more_than_ten_entities_are_reported(t2v: Caption) -> None:
    entry = t2v["global_layer"]["objects_static"][0]
    t2v["global_layer"]["objects_static"] += [{**entry, "object_id": f"<object {n}>"} for n in range(3, 12)]
    assert "T15" in rules(check(t2v), "reported")


def test_t16_words_that_the_user_did_not_give_are_dropped(t2v: Caption) -> None:
    fixed = mended(t2v, "T16", prompt='A clockmaker says "He did" to a cat.')
    lines = [line["text"] for line in segments(fixed)[2]["audio"]["dialogue_lines"]]
    assert lines == ["He did."] and segments(fixed)[1]["text_render"] == []
    silent = mended(t2v, "T16", prompt="A clockmaker repairs a clock.")
    assert segments(silent)[2]["audio"]["dialogue_lines"] == []


def test_t16_speech_that_was_asked_for_without_words_is_kept(t2v: Caption) -> None:
    checked = check(t2v, prompt="A short conversation in a shop with a poster on the wall")
    assert "T16" not in rules(checked, "repaired")


# ---- image to video


@pytest.mark.parametrize(
    ("written", "fixed"),
    [([8.2, 7.0], [7.0, 8.2]), ([-1, 12.0], [0.0, 10.0]), ([7.0, 7.0], [7.0, 7.5]), ([10.0, 10.0], [9.5, 10.0])]
    + [([7], [0.0, 10.0]), ([], [0.0, 10.0]), ([7.0, 8.0, 99.0], [7.0, 8.0])],
)
def test_i1_ranges_are_clamped_and_swapped(i2v: Caption, written: list[float], fixed: list[float]) -> None:
    i2v["audio_event_timeline"][2]["time_range_seconds"] = written
    assert mended(i2v, "I1", "i2v")["audio_event_timeline"][2]["time_range_seconds"] == fixed


def test_i1_integers_are_written_with_a_fraction(i2v: Caption) -> None:
    i2v["shot_timeline"][0]["time_range_seconds"] = [0, 6.5]
    assert json.dumps((check(i2v, "i2v").data or {})["shot_timeline"][0]["time_range_seconds"]) == "[0.0, 6.5]"


def test_i2_shots_are_ordered_and_stretched_to_their_neighbours(i2v: Caption) -> None:
    first, second = i2v["shot_timeline"]
    first["time_range_seconds"], second["time_range_seconds"] = [6.0, 8.0], [1.0, 4.0]
    first["audio_event_identifiers"] = second["audio_event_identifiers"] = []
    fixed = mended(i2v, "I2", "i2v")["shot_timeline"]
    assert [shot["shot_identifier"] for shot in fixed] == ["shot_02_call", "shot_01_coil"]
    assert [shot["time_range_seconds"] for shot in fixed] == [[0.0, 6.0], [6.0, 10.0]]


def test_i2_shots_that_start_together_are_spread_evenly(i2v: Caption) -> None:
    for shot in i2v["shot_timeline"]:
        shot["time_range_seconds"] = [0.0, 10.0]
        shot["audio_event_identifiers"] = []
    fixed = mended(i2v, "I2", "i2v")["shot_timeline"]
    assert [shot["time_range_seconds"] for shot in fixed] == [[0.0, 5.0], [5.0, 10.0]]


def test_i3_repeated_and_blank_handles_are_numbered(i2v: Caption) -> None:
    i2v["reference_bank"][1]["reference_identifier"] = "ref_deckhand"
    i2v["shot_timeline"][0]["shot_identifier"] = ""
    fixed = mended(i2v, "I3", "i2v")
    handles = [entry["reference_identifier"] for entry in fixed["reference_bank"]]
    assert handles == ["ref_deckhand", "ref_deckhand_2", "ref_deck"]
    assert fixed["shot_timeline"][0]["shot_identifier"] == "shot_1"


def test_i4_unknown_references_are_dropped(i2v: Caption) -> None:
    i2v["shot_timeline"][0]["scene_reference_identifier"] = "ref_moon"
    i2v["shot_timeline"][0]["reference_identifiers"] = ["ref_rope", "ref_moon", "ref_rope"]
    i2v["audio_event_timeline"][0]["source_reference_identifier"] = "ref_moon"
    fixed = mended(i2v, "I4", "i2v")
    assert fixed["shot_timeline"][0]["scene_reference_identifier"] == ""
    assert fixed["shot_timeline"][0]["reference_identifiers"] == ["ref_rope"]
    assert fixed["audio_event_timeline"][0]["source_reference_identifier"] == ""


def test_i5_sounds_that_do_not_exist_or_overlap_are_dropped(i2v: Caption) -> None:
    i2v["shot_timeline"][0]["audio_event_identifiers"] = ["aud_engine", "aud_call", "aud_ghost"]
    assert mended(i2v, "I5", "i2v")["shot_timeline"][0]["audio_event_identifiers"] == ["aud_engine"]


def test_i6_only_speech_from_the_prompt_has_words(i2v: Caption) -> None:
    i2v["audio_event_timeline"][0]["spoken_text"] = "brum"
    assert mended(i2v, "I6", "i2v")["audio_event_timeline"][0]["spoken_text"] == ""
    silent = mended(i2v, "I6", "i2v", prompt="the ferry leaves")
    assert silent["audio_event_timeline"][2]["spoken_text"] == ""


def test_i7_text_without_a_lock_is_reported_and_entries_without_text_go(i2v: Caption) -> None:
    i2v["global_caption"]["continuity_requirements"].pop()
    assert rules(check(i2v, "i2v"), "reported") == {"I7"}
    i2v["visible_text"][0]["text"] = " "
    assert mended(i2v, "I7", "i2v")["visible_text"] == []


def test_i8_a_caption_without_entries_gets_the_still_and_one_shot(i2v: Caption) -> None:
    i2v["reference_bank"], i2v["shot_timeline"] = [], []
    fixed = mended(i2v, "I8", "i2v")
    assert fixed["reference_bank"][0]["reference_identifier"] == "still"
    assert fixed["shot_timeline"][0]["shot_caption"] == i2v["global_caption"]["core_caption"]


def test_i8_a_caption_without_words_is_beyond_repair(i2v: Caption) -> None:
    i2v["global_caption"]["core_caption"] = ""
    for shot in i2v["shot_timeline"]:
        shot["shot_caption"] = " "
    assert rules(check(i2v, "i2v"), "fatal") == {"I8"}


def test_i9_a_first_shot_that_does_not_open_on_the_still_is_reported(i2v: Caption) -> None:
    i2v["shot_timeline"][0]["camera_lighting_and_composition"] = "low and wide"
    assert rules(check(i2v, "i2v"), "reported") == {"I9"}


# ---- all rules together


HOSTILE = (
    "",
    " ",
    "<subject 9>",
    "<object 2>",
    "event 1",
    "00:09.0-00:01.0",
    "99:99.9",
    "x",
    "subject 01",
    "<object 0>",
)


def scrambled(node: Any, dice: random.Random) -> Any:
    """The caption with some strings, numbers and list orders replaced by hostile ones of the same type."""
    if isinstance(node, dict):
        return {key: scrambled(value, dice) for key, value in node.items()}
    if isinstance(node, list):
        items = [scrambled(item, dice) for item in node]
        return dice.choices(items, k=dice.randrange(6)) if items and dice.random() < 0.2 else items
    if dice.random() < 0.8:
        return node
    if isinstance(node, str):
        return dice.choice(HOSTILE)
    return dice.randrange(-3, 30) if isinstance(node, int) else dice.uniform(-3, 30)


@pytest.mark.parametrize(("number", "task"), [(2, "t2v"), (12, "i2v")])
@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_repair_of_any_damage_is_final_and_fits_the_schemas(number: int, task: Task, seed: int) -> None:
    checked = check(scrambled(parse_json(case_text(number)), random.Random(seed)), task)
    if checked.data is not None:
        again = check(copy.deepcopy(checked.data), task)
        assert again.data == checked.data and not rules(again, "repaired"), again.findings
        assert not wire_schema.problems(checked.data, wire_schema.load(f"{task}.semantic"))


# ---- clock


def test_instants_and_spans_round_trip() -> None:
    for tenths in (0, 1, 33, 99, 100, 599, 600):
        assert parse_instant(format_instant(tenths)) == tenths
    assert parse_span(format_span((33, 66))) == (33, 66)
    assert parse_instant("3s") == 30 and parse_instant("1:02.5") == 625 and parse_instant("soon") is None
    assert parse_span("0-3 s") == (0, 30) and parse_span("00:01.0") is None and parse_span("1-2-3") is None


def test_default_grid_tiles_the_clip() -> None:
    for count in range(1, 7):
        spans = default_spans(count)
        assert len(spans) == count and spans[0][0] == 0 and spans[-1][1] == 100
        assert all(left[1] == right[0] for left, right in pairwise(spans))


@given(st.integers(0, 90), st.integers(1, 10), st.integers(1, 40))
def test_spread_spans_are_never_empty_and_stay_inside(start: int, length: int, count: int) -> None:
    spans = spread((start, start + length), count)
    assert len(spans) == count and all(start <= a < b <= start + length for a, b in spans)
