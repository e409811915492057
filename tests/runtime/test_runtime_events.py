"""The event stream: one line each, strict in what it reads, silent about prompts."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magi2.errors import MAX_QUOTE, ContractError, CorruptedArtifactError, InputError, Magi2Error, error_text
from magi2.runtime.events import (
    ClipFinished,
    Event,
    Failure,
    Finished,
    Heartbeat,
    Hello,
    Joined,
    Loading,
    ModelsLoaded,
    Resumed,
    StageStarted,
    Step,
    StoreAway,
    StoreBack,
    Waiting,
    from_line,
    to_line,
)

EVENTS: list[Event] = [
    Hello(3, 12345),
    StageStarted("preview", 16),
    Joined(),
    Loading(2**37),
    ModelsLoaded(81.5),
    Resumed("a" * 64, 40, 100),
    Waiting(),
    StoreAway(60.5, "refused"),
    StoreBack(90.0),
    Step("a" * 64, 41, 100),
    ClipFinished("a" * 64, "made", "b" * 64, 12.5, ("text_truncated",), None, None, 2**37, 100.0),
    ClipFinished("c1", "failed", None, 0.0, (), "image", "no picture\nat all"),
    Heartbeat(),
    Failure("input", "two\nlines"),
    Failure("out_of_memory", "141 GiB asked", "a" * 64),
    Finished(),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_event_is_one_line_and_reads_back_equal(event: Event) -> None:
    line = to_line(event)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line)["v"] == 1
    assert from_line(line) == event


@given(st.text())
def test_any_message_stays_on_its_line(text: str) -> None:
    event = Failure("error", text.encode(errors="replace").decode())
    assert to_line(event).count(b"\n") == 1
    assert from_line(to_line(event)) == event


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"not json",
        b"[]",
        b"\xff\xfe",
        b'{"kind":"heartbeat"}',
        b'{"v":2,"kind":"heartbeat"}',
        b'{"v":1,"kind":"step","clip_id":"a","done":1}',
        b'{"v":1,"kind":"step","clip_id":"a","done":"1","total":2}',
        b'{"v":1,"kind":"step","clip_id":"a","done":-1,"total":2}',
        b'{"v":1,"kind":"step","clip_id":"a","done":true,"total":2}',
        b'{"v":1,"kind":"step","clip_id":"a prompt","done":1,"total":2}',
        b'{"v":1,"kind":"step","clip_id":"a","done":1,"total":2,"prompt":"a cat"}',
        b'{"v":1,"kind":"models_loaded","seconds":NaN}',
        b'{"v":1,"kind":"clip_finished","clip_id":"a","state":"well","key":null,"seconds":1.0}',
    ],
)
def test_what_is_no_event_is_refused(line: bytes) -> None:
    with pytest.raises(ContractError, match="event stream"):
        from_line(line)


def test_unknown_kind_is_ignored_with_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert from_line(b'{"v":1,"kind":"telemetry","x":1}') is None
    assert "telemetry" in caplog.text


def test_refusal_does_not_quote_the_line() -> None:
    for line in (b'{"v":1,"kind":"step","clip_id":"a secret prompt","done":1,"total":2}', b"a secret prompt"):
        with pytest.raises(ContractError) as caught:
            from_line(line)
        assert "secret" not in str(caught.value)


def test_no_field_of_any_event_is_meant_for_a_prompt() -> None:
    names = {name for event in EVENTS for name in event.__dataclass_fields__}
    assert not {name for name in names if "prompt" in name or "text" in name or "caption" in name}


@pytest.mark.parametrize("error", [InputError("p" * 5000), Magi2Error("unforeseen: " + "p" * 5000)])
def test_errors_that_may_quote_users_are_cut_to_200_characters(error: Magi2Error) -> None:
    assert len(error_text(error)) == MAX_QUOTE == 200


def test_other_errors_keep_their_details() -> None:
    text = f"artifact: SHA-256 is {'a' * 64},\n the manifest says {'b' * 64}, at {'c' * 100}"
    assert error_text(CorruptedArtifactError(text)) == text.replace("\n ", " ")
    assert len(error_text(CorruptedArtifactError("x" * 5000))) == 1000
