"""Subtitles of what a caption says when."""

from __future__ import annotations

from typing import Any

import pytest

from magi2.delivery.subtitles import webvtt


def segments(*lines: dict[str, Any]) -> dict[str, Any]:
    return {"dynamic_layer": {"timeline_segments": [{"audio": {"dialogue_lines": list(lines)}}]}}


def test_dialogue_of_a_text_to_video_caption_has_times_and_speakers() -> None:
    caption = segments(
        {"timestamp": "00:05.0-00:07.5", "speaker": "S2", "text": "Tom & Ann <shout>\nhere --> there"},
        {"timestamp": "00:01.2-00:03.0", "speaker": "", "text": "Hello"},
    )
    assert webvtt(caption) == (
        "WEBVTT\n\n00:00:01.200 --> 00:00:03.000\nHello\n\n"
        "00:00:05.000 --> 00:00:07.500\n<v S2>Tom &amp; Ann &lt;shout&gt; here --&gt; there\n"
    )


def test_speech_of_an_image_to_video_caption_has_times() -> None:
    caption = {"audio_event_timeline": [{"time_range_seconds": [0.5, 12], "spoken_text": "Look"}]}
    assert webvtt(caption) == "WEBVTT\n\n00:00:00.500 --> 00:00:10.000\nLook\n"


@pytest.mark.parametrize(
    "caption",
    [
        None,
        {},
        {"dynamic_layer": []},
        {"dynamic_layer": {"timeline_segments": [None, {"audio": {"dialogue_lines": "none"}}]}},
        segments({"timestamp": "later", "text": "Hello"}),
        segments({"timestamp": "00:03.0-00:02.0", "text": "Hello"}),
        segments({"timestamp": 3, "text": "Hello"}),
        segments({"timestamp": "00:01.0-00:02.0", "text": " "}),
        segments({"timestamp": "00:11.0-00:12.0", "text": "after the end"}),
        {"audio_event_timeline": [{"time_range_seconds": [float("nan"), 1.0], "spoken_text": "Look"}]},
        {"audio_event_timeline": [{"time_range_seconds": [1.0], "spoken_text": "Look"}]},
    ],
)
def test_without_timed_words_there_are_none(caption: dict[str, Any] | None) -> None:
    assert webvtt(caption) is None
