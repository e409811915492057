"""The client against a real server: protocol, bounded attempts and time, and errors that leak nothing."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest

from magi2.errors import ConfigError, InfrastructureError, InputError, Magi2Error
from magi2.prompts import CaptionClient, EndpointSettings
from magi2.prompts.retry_after import pause_before
from magi2.prompts.semantic import response_format
from tests.prompts.fake_endpoint import Answer, ChatServer

MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "the whole prompt"}]}]


def ask(settings: EndpointSettings) -> Any:
    return CaptionClient(settings).complete(
        MESSAGES, model=settings.model, max_tokens=settings.max_tokens, response_format=response_format("t2v")
    )


def assert_leaks_nothing(error: Magi2Error) -> None:
    text = str(error)
    assert len(text) < 300
    assert "sk-secret-key" not in text and "LEAK" not in text and "the whole prompt" not in text
    assert error.__cause__ is None and error.__suppress_context__


def test_request_has_the_protocol_of_the_reference(chat_server: ChatServer) -> None:
    chat_server.script(Answer("hello"))
    reply = ask(chat_server.settings())
    assert (reply.text, reply.finish_reason, reply.refusal, reply.model) == ("hello", "stop", None, "tester-1.2")
    assert reply.usage == {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    assert chat_server.headers[0]["path"] == "/v1/chat/completions"
    assert chat_server.headers[0]["authorization"] == "Bearer sk-secret-key"
    assert chat_server.requests[0] == {
        "messages": MESSAGES,
        "model": "tester",
        "max_tokens": 16384,
        "response_format": response_format("t2v"),
    }


def test_temperature_is_sent_only_when_set(chat_server: ChatServer) -> None:
    chat_server.script(Answer("hello"))
    ask(chat_server.settings(temperature=0.0))
    assert chat_server.requests[0]["temperature"] == 0.0


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
def test_overload_and_failures_are_tried_again_then_retryable(chat_server: ChatServer, status: int) -> None:
    chat_server.script(Answer(status=status))
    with pytest.raises(InfrastructureError, match=f"{status} in 3 attempts") as caught:
        ask(chat_server.settings(max_retries=2))
    assert len(chat_server.requests) == 3
    assert_leaks_nothing(caught.value)


def test_one_failure_then_success_succeeds(chat_server: ChatServer) -> None:
    chat_server.script(Answer(status=429), Answer("hello"))
    assert ask(chat_server.settings(max_retries=1)).text == "hello"
    assert len(chat_server.requests) == 2


@pytest.mark.parametrize("status", [429, 503])
def test_an_endpoint_gets_the_pause_that_it_asks_for(chat_server: ChatServer, status: int) -> None:
    chat_server.script(Answer(status=status, retry_after="1"), Answer("hello"))
    assert ask(chat_server.settings(max_retries=1)).text == "hello"
    first, second = chat_server.asked_at
    assert second - first >= 1.0


@pytest.mark.parametrize("asked", ["3600", "1e400", "Fri, 01 Jan 2100 00:00:00 GMT"])
def test_a_pause_beyond_the_limit_is_not_waited_for_and_said(chat_server: ChatServer, asked: str) -> None:
    chat_server.script(Answer(status=429, retry_after=asked), Answer("hello"))
    with pytest.raises(InfrastructureError, match=r"answered 429 and needs a pause of .*left of 20 s") as caught:
        ask(chat_server.settings(max_retries=3))
    assert len(chat_server.requests) == 1
    assert_leaks_nothing(caught.value)


def test_a_pause_longer_than_the_sdk_would_wait_is_granted() -> None:
    assert pause_before(2, {"retry-after": "150"}) == 150.0


@pytest.mark.parametrize("asked", ["", "soon", "nan", "Fri, 99 Foo"])
def test_pauses_that_nobody_asked_for_double_up_to_a_limit(asked: str) -> None:
    assert [pause_before(attempt, {"retry-after": asked}) for attempt in (2, 3, 4, 7, 5000)] == [0.5, 1, 2, 8, 8]


def test_a_date_that_has_passed_and_a_negative_number_ask_for_no_pause() -> None:
    assert (
        pause_before(2, {"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}) == pause_before(2, {"retry-after": "-5"}) == 0
    )


@pytest.mark.parametrize(("status", "error"), [(401, ConfigError), (403, ConfigError), (404, ConfigError)])
def test_a_wrong_setting_is_asked_once(chat_server: ChatServer, status: int, error: type[Magi2Error]) -> None:
    chat_server.script(Answer(status=status))
    with pytest.raises(error) as caught:
        ask(chat_server.settings(max_retries=3))
    assert len(chat_server.requests) == 1
    assert_leaks_nothing(caught.value)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refused_request_is_asked_once(chat_server: ChatServer, status: int) -> None:
    chat_server.script(Answer(status=status))
    with pytest.raises(InputError) as caught:
        ask(chat_server.settings(max_retries=3))
    assert not isinstance(caught.value, ConfigError) and len(chat_server.requests) == 1
    assert_leaks_nothing(caught.value)


def test_timeout_bounds_all_attempts_together(chat_server: ChatServer) -> None:
    chat_server.script(Answer("late", delay_s=3.0))
    started = time.monotonic()
    with pytest.raises(InfrastructureError, match=r"within 0\.5 s|attempts") as caught:
        ask(chat_server.settings(timeout_s=0.5, max_retries=5))
    assert time.monotonic() - started < 2.5
    assert_leaks_nothing(caught.value)


@pytest.mark.slow
def test_a_closed_port_is_retryable() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(InfrastructureError, match="cannot be reached in 1 attempts"):
        ask(EndpointSettings(base_url=f"http://127.0.0.1:{port}/v1", max_retries=0, timeout_s=5))


@pytest.mark.parametrize("body", [b"<html>gateway</html>", b"{broken", b"[]", b'"text"', b"null", b"{}"])
def test_a_body_that_is_no_completion_is_retryable_or_blank(chat_server: ChatServer, body: bytes) -> None:
    chat_server.script(Answer(raw_body=body))
    try:
        assert ask(chat_server.settings()).text == ""
    except InfrastructureError as error:
        assert_leaks_nothing(error)


def test_no_choices_and_null_content_give_a_blank_reply(chat_server: ChatServer) -> None:
    chat_server.script(Answer("x", choices=False), Answer(None))
    assert ask(chat_server.settings()).text == ""
    assert ask(chat_server.settings()).text == ""


def test_refusal_and_finish_reason_are_kept(chat_server: ChatServer) -> None:
    chat_server.script(Answer(None, refusal="no", finish_reason="content_filter"))
    reply = ask(chat_server.settings())
    assert (reply.refusal, reply.finish_reason) == ("no", "content_filter")


def test_client_works_inside_a_running_event_loop(chat_server: ChatServer) -> None:
    chat_server.script(Answer("hello"))

    async def inside() -> str:
        return str(ask(chat_server.settings()).text)

    assert asyncio.run(inside()) == "hello"


def test_settings_hide_the_key_and_refuse_what_cannot_work() -> None:
    assert "sk-1" not in repr(EndpointSettings(api_key="sk-1"))
    for changes in (
        {"base_url": "ftp://x"},
        {"base_url": "http://"},
        {"base_url": "http://[broken"},
        {"model": " "},
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"max_retries": -1},
        {"temperature": 3.0},
        {"max_image_bytes": 0},
    ):
        with pytest.raises(ConfigError):
            EndpointSettings(**changes)
