"""The five modes over a real server: repairs, the one re-ask, strictness and the fallback."""

from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from magi2.errors import (
    ConfigError,
    CorruptedArtifactError,
    EnhancementError,
    ImageError,
    InfrastructureError,
    InputError,
)
from magi2.prompts import Caption, EndpointSettings, Figure, Reply, enhance, render_markdown, resolve_mode
from magi2.prompts.decode import DecodeError, decode_lenient, parse_json
from tests.prompts.fake_endpoint import Answer, ChatServer, case_text

PROMPT = 'A clockmaker says "There, he keeps better time than I do." and "He did." A card reads "Back at 3".'
GOOD = json.dumps(parse_json(case_text(2)), ensure_ascii=False)


@pytest.fixture
def still(tmp_path: Path) -> tuple[Figure, ...]:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    return (Figure(1, "<Figure 1>", str(tmp_path / "a.png")),)


def run(server: ChatServer, mode: str = "llm", prompt: str = PROMPT, **options: Any) -> Caption:
    endpoint = options.pop("endpoint", None) or server.settings()
    return enhance(prompt, mode=mode, aspect_ratio="4:3", endpoint=endpoint, **options)


def said(request: dict[str, Any]) -> str:
    content = request["messages"][-1]["content"]
    return str(content[-1]["text"])


# ---- modes


def test_auto_is_llm_with_an_endpoint_and_off_without() -> None:
    assert resolve_mode("auto", None) == "off" and resolve_mode("auto", EndpointSettings()) == "llm"
    for mode in ("off", "offline"):
        assert resolve_mode(mode, None) == mode
    with pytest.raises(ConfigError, match="needs an endpoint"):
        resolve_mode("llm-strict", None)
    with pytest.raises(ConfigError, match="unknown enhancement mode"):
        resolve_mode("fast", EndpointSettings())


@pytest.mark.parametrize("prompt", ["  a cat\n", "猫", '{"global_layer": {"description": "x"}}', "# global_layer\n"])
def test_off_passes_the_prompt_byte_for_byte(prompt: str) -> None:
    caption = enhance(prompt, mode="auto", aspect_ratio="16:9")
    assert (caption.text, caption.mode_used, caption.data) == (prompt, "off", None)


@pytest.mark.parametrize("mode", ["off", "offline", "llm"])
def test_no_mode_lets_an_empty_prompt_through(mode: str, chat_server: ChatServer) -> None:
    hollow = case_text(9)
    for prompt in ("", " \n", *((hollow,) if mode != "llm" else ())):
        with pytest.raises(InputError):
            run(chat_server, mode, prompt)
    assert chat_server.requests == []


def test_a_good_reply_is_rendered_and_recorded(chat_server: ChatServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    chat_server.script(Answer(GOOD))
    caption = run(chat_server)
    assert caption.text == render_markdown(parse_json(case_text(2))) and caption.data == parse_json(case_text(2))
    assert (caption.mode_requested, caption.mode_used, caption.fallback) == ("llm", "llm", False)
    assert caption.findings == caption.repairs == () and caption.model == "tester-1.2"
    assert caption.usage == {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    assert (
        "caption attempt 1: stop" in caplog.text and "clockmaker" not in caplog.text and "sk-secret" not in caplog.text
    )


def test_json_format_hands_the_caption_to_the_compact_renderer(chat_server: ChatServer) -> None:
    chat_server.script(Answer(GOOD))
    caption = run(chat_server, compact_format="json")
    assert parse_json(caption.text) == parse_json(GOOD)
    assert "Repeat readable text, causes" in json.dumps(chat_server.requests[0])


def test_an_image_is_sent_and_asks_for_the_other_shape(chat_server: ChatServer, still: tuple[Figure, ...]) -> None:
    chat_server.script(Answer(case_text(12)))
    caption = run(chat_server, prompt="he shouts, the stencil stays", images=still)
    request = chat_server.requests[0]
    assert request["response_format"]["json_schema"]["name"] == "I2VEnhanceResult"
    assert request["messages"][0]["content"][1]["image_url"]["url"].startswith("data:image/png;base64,")
    assert caption.text.startswith("# global_caption")


def test_a_blank_prompt_with_an_image_is_asked_for_but_not_sent_as_written(
    chat_server: ChatServer, still: tuple[Figure, ...]
) -> None:
    chat_server.script(Answer(case_text(11)))
    assert run(chat_server, prompt="", images=still).text.strip()
    with pytest.raises(InputError, match="empty"):
        run(chat_server, "off", "", images=still)


# ---- repairs and the re-ask


def test_mechanical_repairs_are_accepted_and_listed(chat_server: ChatServer) -> None:
    chat_server.script(Answer(f"Here it is:\n```json\n{case_text(3)}\n```"))
    caption = run(chat_server, prompt="A scene")
    assert len(chat_server.requests) == 1 and caption.data is not None
    assert any("prose" in repair for repair in caption.repairs)
    assert any(repair.startswith("T10") for repair in caption.repairs)


def test_an_unusable_reply_is_asked_again_with_its_faults(chat_server: ChatServer) -> None:
    bad = parse_json(GOOD)
    bad["global_layer"]["context"] = 5
    chat_server.script(Answer(json.dumps(bad)), Answer(GOOD))
    caption = run(chat_server)
    assert caption.usage["total_tokens"] == 36 and caption.findings == ()
    first, second = chat_server.requests
    assert second["messages"][0] == first["messages"][0]
    assert second["messages"][1] == {"role": "assistant", "content": json.dumps(bad)}
    assert "shape: global_layer.context" in said(second)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Answer(case_text(16)), "not one complete JSON object"),
        (Answer(case_text(17)), "not an object"),
        (Answer(case_text(18)), "lacks the root keys dynamic_layer"),
        (Answer(case_text(10)), "shape: dynamic_layer"),
        (Answer(case_text(7)), "global_layer.context"),
        (Answer(case_text(8)), "timeline_segments"),
        (Answer(case_text(9)), "global_layer"),
        (Answer(GOOD, finish_reason="length"), "cut off at the token limit"),
        (Answer(None), "empty"),
        (Answer("x", choices=False), "empty"),
        (Answer("I cannot see a request."), "not one complete JSON object"),
    ],
)
def test_every_unusable_reply_gets_exactly_one_more_chance(chat_server: ChatServer, answer: Answer, told: str) -> None:
    chat_server.script(answer)
    with pytest.raises(EnhancementError) as caught:
        run(chat_server)
    assert len(chat_server.requests) == 2 and told in said(chat_server.requests[1])
    assert told[:20] in str(caught.value) and len(str(caught.value)) < 300
    chat_server.script(answer, answer, answer, Answer(GOOD))
    assert run(chat_server).data is not None


@pytest.mark.parametrize(
    "answer",
    [
        Answer(None, refusal="I cannot help with that."),
        Answer("half an ans", finish_reason="content_filter"),
        Answer('{"refusal": "not this"}'),
    ],
)
def test_a_refusal_is_not_asked_again(chat_server: ChatServer, answer: Answer) -> None:
    chat_server.script(answer)
    with pytest.raises(EnhancementError, match="declined"):
        run(chat_server)
    assert len(chat_server.requests) == 1


@pytest.mark.parametrize(("number", "task"), [(15, "t2v"), (21, "t2v"), (22, "t2v"), (23, "t2v")])
def test_decorated_and_broken_json_is_read(number: int, task: Any) -> None:
    decoded, repairs = decode_lenient(case_text(number), task)
    assert decoded["global_layer"] and repairs


@pytest.mark.parametrize(
    "text", ["{'global_layer': {}, 'dynamic_layer': {}}", '{"global_layer": {"a": 1,}, "dynamic_layer": {},}']
)
def test_broken_punctuation_is_mended_when_the_object_is_complete(text: str) -> None:
    assert decode_lenient(text, "t2v")[1] == ["json: broken punctuation mended"]


def mangled(dice: random.Random) -> str:
    """A good reply with pieces cut out, doubled or replaced."""
    text = GOOD
    for _ in range(dice.randrange(1, 6)):
        start = dice.randrange(len(text))
        end = start + dice.randrange(1, 40)
        piece = dice.choice(
            ("", text[start:end] * 2, "\n", '"', "}", "{", "[", "]", ",", "\\", "```", "\x00", "\\ud800")
        )
        text = text[:start] + piece + text[end:]
    return text


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_mangled_reply_gives_a_full_caption_or_an_enhancement_error(seed: int) -> None:
    class Scripted:
        def complete(self, messages: Any, **_: Any) -> Reply:
            return Reply(text, "stop")

    text = mangled(random.Random(seed))
    try:
        caption = enhance(PROMPT, mode="llm", aspect_ratio="4:3", client=Scripted())
    except EnhancementError:
        return
    assert caption.text.strip() and Caption.from_json(caption.to_json()) == caption


@pytest.mark.parametrize(
    "text", ["", "{", "}", "{{{{", '{"a": "', "null", "[" * 5000, '{"a":' * 5000 + "1" + "}" * 5000]
)
def test_hopeless_replies_are_decode_errors(text: str) -> None:
    with pytest.raises(DecodeError):
        decode_lenient(text, "t2v")


# ---- strict and fallback


def test_strict_asks_again_for_what_llm_would_mend_and_then_fails(chat_server: ChatServer) -> None:
    wide = GOOD.replace('"4:3"', '"16:9"')
    chat_server.script(Answer(wide), Answer(GOOD))
    caption = run(chat_server, "llm-strict")
    assert caption.mode_used == "llm-strict" and caption.repairs == ()
    assert "T5: aspect_ratio" in said(chat_server.requests[1])
    chat_server.script(Answer(wide))
    with pytest.raises(EnhancementError, match="T5"):
        run(chat_server, "llm-strict")


@pytest.mark.parametrize(
    "answer",
    [Answer(status=500), Answer(status=429), Answer(status=400), Answer("no"), Answer(None, refusal="no")]
    + [Answer("late", delay_s=1.5)],
)
def test_fallback_is_the_offline_caption_flagged(chat_server: ChatServer, answer: Answer) -> None:
    chat_server.script(answer)
    caption = run(chat_server, "llm-then-offline", endpoint=chat_server.settings(timeout_s=1.0))
    plain = enhance(PROMPT, mode="offline", aspect_ratio="4:3")
    assert (caption.text, caption.data) == (plain.text, plain.data)
    assert (caption.mode_requested, caption.mode_used, caption.fallback) == ("llm-then-offline", "offline", True)
    assert caption.findings[0].startswith("fallback: ") and not plain.fallback


def test_a_good_reply_needs_no_fallback(chat_server: ChatServer) -> None:
    chat_server.script(Answer(GOOD))
    caption = run(chat_server, "llm-then-offline")
    assert (caption.mode_used, caption.fallback) == ("llm-then-offline", False)


def test_wrong_settings_and_broken_images_never_fall_back(chat_server: ChatServer) -> None:
    chat_server.script(Answer(status=401))
    with pytest.raises(ConfigError):
        run(chat_server, "llm-then-offline")
    with pytest.raises(ImageError):
        run(chat_server, "llm-then-offline", images=(Figure(1, "<Figure 1>", "/missing.png"),))


@pytest.mark.parametrize("answer", [Answer(status=500), Answer("late", delay_s=1.5)])
def test_without_fallback_the_failure_is_retryable(chat_server: ChatServer, answer: Answer) -> None:
    chat_server.script(answer)
    with pytest.raises(InfrastructureError):
        run(chat_server, endpoint=chat_server.settings(timeout_s=1.0))


# ---- the job


def test_bad_jobs_are_refused_before_any_request(chat_server: ChatServer) -> None:
    for options in (
        {"prompt": "a \ud800 b"},
        {"prompt": '{"global_layer": {"description": "a \\ud800 b"}}'},
        {"prompt": "look at <Figure 2>"},
    ):
        with pytest.raises(InputError):
            run(chat_server, **options)
    with pytest.raises(InputError, match="aspect ratio"):
        enhance("a cat", mode="off", aspect_ratio="wide")
    assert chat_server.requests == []


def test_a_caption_survives_storage_byte_for_byte(chat_server: ChatServer) -> None:
    chat_server.script(Answer(GOOD.replace('"4:3"', '"1:1"')))
    for caption in (run(chat_server), enhance("猫\n", mode="off", aspect_ratio="1:1"), Caption("x")):
        stored = caption.to_json()
        again = Caption.from_json(stored)
        assert again == caption and again.to_json() == stored
        if caption.data is not None:
            assert json.dumps(again.data) == json.dumps(caption.data)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"text": 1}', b"null"])
def test_anything_else_is_a_corrupted_artifact(content: bytes) -> None:
    with pytest.raises(CorruptedArtifactError):
        Caption.from_json(content)
    broken = Caption("x").to_json().replace(b'"text": "x"', b'"text": 5')
    with pytest.raises(CorruptedArtifactError):
        Caption.from_json(broken)


@pytest.mark.slow
def test_importing_the_package_loads_neither_torch_nor_the_sdk() -> None:
    code = "import magi2.prompts, sys; assert not {'torch', 'transformers', 'airflow', 'openai'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
